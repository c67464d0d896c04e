"""Say of all runs of a check which identities hold in them, and which run contradicts itself."""

from __future__ import annotations

from typing import Any

from pytest_precision.check.case import Case
from pytest_precision.check.gate import failed, gate
from pytest_precision.parity.recorded_case import RecordedCase
from pytest_precision.parity.verdict import Ruling
from pytest_precision.probes.declared_rule.oracle_log import OracleLog
from pytest_precision.probes.identities import identity_rules
from pytest_precision.probes.identities.consistency import Consistency
from pytest_precision.probes.identities.identity_rules import Contradiction


def consistencies(case: RecordedCase) -> dict[str, Consistency]:
    """Check identities, such as weight = cast master, in each run; {} if all are exempt."""
    if case.exempt.all:
        return {}
    logs = {side.name: side.log for side in case.whole.sides}
    return {
        side.name: Consistency.of(side, logs[side.name](OracleLog), case.exempt)
        for side in case.judged
    }


def identities_in_runs(case: RecordedCase) -> dict[str, Any] | None:
    """Return as dicts which identities hold in each run; None where the test has turned that off.

    Returns:
        for each run how many tensors were looked at for each of them, and the first one that
        contradicts it.
    """
    by_run = case.once(consistencies)
    return {name: consistency.as_dict() for name, consistency in by_run.items()} or None


def contradicted(case: RecordedCase) -> tuple[str, str] | None:
    """Return in words the first identity that fails within a run, with advice, or None."""
    contradictions = _contradictions(case)
    if not contradictions:
        return None
    name, breach = contradictions[0]
    who = "both sides" if len(contradictions) > 1 else f"the {name}"
    return identity_rules.contradiction_words(breach, who), identity_rules.advice_on(breach)


def contradictions_explained(case: RecordedCase, diagnosis: object) -> list[str]:
    """Return a line for each run of a difference in which an identity fails."""
    return [
        f"It contradicts itself: {identity_rules.contradiction_words(breach, f'the {name}')}"
        for name, breach in _contradictions(case)
    ]


def _contradictions(case: RecordedCase) -> list[tuple[str, Contradiction]]:
    by_run = case.once(consistencies).items()
    return [
        (name, consistency.breach) for name, consistency in by_run if consistency.breach is not None
    ]


@gate
def consistent(case: Case) -> Ruling | None:
    """Fail the check if an identity, such as weight = cast master, fails within one of the runs."""
    contradiction = contradicted(case)
    if contradiction is None:
        return None
    headline, advice = contradiction
    return failed(headline, [advice])
