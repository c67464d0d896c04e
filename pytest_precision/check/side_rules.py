"""Gates that hold a side to rules, not to the other side: identities, a loop's, its workload's."""

from __future__ import annotations

from pytest_precision.check.case import Case
from pytest_precision.check.gate import failed, gate
from pytest_precision.parity.self_checks.contradictions import contradicted
from pytest_precision.parity.self_checks.oracle_findings import (
    GRADIENT_ADVICE,
    breach_headline,
    breached,
    gradient_headline,
    wrong_gradients,
)
from pytest_precision.parity.verdict import Ruling
from pytest_precision.trace.broken_rules import BrokenRules


@gate
def consistent(case: Case) -> Ruling | None:
    """Fail the check if an identity, such as weight = cast master, fails within one of the runs."""
    contradiction = contradicted(case)
    if contradiction is None:
        return None
    headline, advice = contradiction
    return failed(headline, [advice])


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


@gate
def workload_gradients(case: Case) -> Ruling | None:
    """Fail the check if losses or gradients are not those of the workload's model and loss."""
    wrong = wrong_gradients(case.judged, case.terms.exempt)
    if not wrong:
        return None
    return failed(gradient_headline(wrong), [GRADIENT_ADVICE])


@gate
def declared_rule(case: Case) -> Ruling | None:
    """Fail the check if updates do not follow the optimizer that the workload declares."""
    wrong = breached(case.judged, case.terms.exempt)
    if not wrong:
        return None
    advice = (
        "If they should be, declare their rule as optimizer_rule of the workload; "
        "oracle=unchecked(reason=...) turns this judgement off, "
        f"oracle={{{wrong[0].breach.kind!r}: unchecked(reason=...)}} that of this kind."
    )
    return failed(breach_headline(wrong), [advice])
