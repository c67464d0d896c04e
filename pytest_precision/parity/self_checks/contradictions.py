"""Say of all runs of a check which identities hold in them, and which run contradicts itself."""

from __future__ import annotations

from typing import Any

from pytest_precision.parity.recorded_case import RecordedCase
from pytest_precision.parity.self_checks import identities
from pytest_precision.parity.self_checks.consistency import Consistency
from pytest_precision.parity.self_checks.identities import Contradiction
from pytest_precision.trace.oracle_log import OracleLog


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
    return identities.contradiction_words(breach, who), identities.advice_on(breach)


def contradictions_explained(case: RecordedCase, diagnosis: object) -> list[str]:
    """Return a line for each run of a difference in which an identity fails."""
    return [
        f"It contradicts itself: {identities.contradiction_words(breach, f'the {name}')}"
        for name, breach in _contradictions(case)
    ]


def _contradictions(case: RecordedCase) -> list[tuple[str, Contradiction]]:
    by_run = case.once(consistencies).items()
    return [
        (name, consistency.breach) for name, consistency in by_run if consistency.breach is not None
    ]
