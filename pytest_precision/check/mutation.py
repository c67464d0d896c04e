"""Test whether a passing check would notice known defects planted into its candidate."""

from __future__ import annotations

from typing import Any

from pytest_precision.check.case import Case
from pytest_precision.check.gate import gate
from pytest_precision.check.gates import MUTANT_GATES, refused
from pytest_precision.errors import NotPlantedError, SideFailed, expected_but_got
from pytest_precision.parity.compare.divergences import differs
from pytest_precision.parity.verdict import Ruling
from pytest_precision.recorders.perturb.mutants import MUTANTS

NOT_PLANTED = f"{NotPlantedError.__module__}.{NotPlantedError.__qualname__}"
"""What a rank calls the error of a mutant that could not be planted."""


def ruled_by_mutants(
    share: float, current_ruling: Ruling, case: Case
) -> tuple[Ruling, dict[str, Any]]:
    """Plant defects (mutants) into a passing candidate; fail it if too few are noticed.

    Args:
        share: of them that it must notice, from 0 to 1.
        current_ruling: the ruling without them; nothing is planted into what does not pass.
        case: both sides.

    Raises:
        SideFailed: see `mutants`.
    """
    if current_ruling.outcome != "pass":
        return current_ruling, {}
    report = mutants(case)
    return noticed(report, share) or current_ruling, {"mutants": report}


def mutants(case: Case) -> dict[str, Any]:
    """Plant known defects into a passing candidate, one by one, and return which were noticed.

    Returns:
        The names of those that were `killed`; of those that `survived`, each with what a workload
        or a criterion lacks that does not show it; and of those that are `equivalent`, since no
        observation differs: they are not counted.

    Raises:
        SideFailed: a mutant could not be planted, which proves nothing about the check.
    """
    killed: list[str] = []
    equivalent: list[str] = []
    survived: dict[str, str] = {}
    for name, mutant in MUTANTS.items():
        try:
            planted = case.mutated(name)
        except SideFailed as failed:
            if getattr(failed.__cause__, "exception", "") == NOT_PLANTED:
                raise
            killed.append(name)
            continue
        if differs(planted.candidate, case.candidate) is None:
            equivalent.append(name)
        elif planted.judgement.first is not None or refused(planted, MUTANT_GATES):
            killed.append(name)
        else:
            survived[name] = mutant.advice
    return {"killed": killed, "survived": survived, "equivalent": equivalent}


@gate
def noticed(report: dict[str, Any], share: float) -> Ruling | None:
    """Fail the check if it noticed a smaller share of planted defects than required.

    Args:
        report: what `mutants` has returned.
        share: from 0 to 1, of the mutants that are not equivalent.
    """
    killed, survived = len(report["killed"]), report["survived"]
    counted = killed + len(survived)
    if killed >= share * counted:
        return None
    reason = expected_but_got(
        f"at least {share:.0%} of planted defects to be noticed",
        f"{killed} of {counted}",
        "add to the workload or tighten the criterion",
    )
    details = tuple(f"never noticed: {name}; {advice}" for name, advice in survived.items())
    return Ruling(outcome="vacuous", reason=reason, details=details)
