"""Refuse a cell whose training loop breaks a rule that every loop keeps."""

from __future__ import annotations

from pytest_precision.check.case import Case
from pytest_precision.check.gate import failed, gate
from pytest_precision.parity.verdict import Ruling
from pytest_precision.probes.loop_rules.broken_rules import BrokenRules


@gate
def loop_rules(case: Case) -> Ruling | None:
    """Fail the check if a training loop makes a mistake, such as adding to old gradients."""
    by_side = {side.name: side.log(BrokenRules).kinds for side in case.judged}
    broken = {words: kind for kinds in by_side.values() for words, kind in kinds.items()}
    for words, kind in broken.items():
        if case.exempt.judges(kind, ""):
            names = [name for name, kinds in by_side.items() if words in kinds]
            who = "both sides" if len(names) > 1 else f"the {names[0]}"
            advice = f"If that is meant, oracle={{{kind!r}: unchecked(reason=...)}} allows it."
            return failed(f"{words} in {who}", [advice])
    return None
