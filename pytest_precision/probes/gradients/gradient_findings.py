"""Describe losses and gradients that are not those of the workload's own model and loss."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from pytest_precision.check.case import Case
from pytest_precision.check.gate import failed, gate
from pytest_precision.parity.exempt import Exempt
from pytest_precision.parity.recorded_case import RecordedCase
from pytest_precision.parity.verdict import Ruling
from pytest_precision.probes.gradients.gradient_log import GradientBreach, GradientLog
from pytest_precision.trace.recording import Recording

UNKNOWN = "no wrong rule that is known explains it"

GRADIENT_ADVICE = (
    "The workload's own model and loss give other values at the weights that this side has used. "
    'If that is meant, oracle={"grad": unchecked(reason=...)} turns this judgement off.'
)


class WrongGradient(NamedTuple):
    """A loss or gradient of one run that differs from the one that the workload recomputes."""

    side: str
    breach: GradientBreach


def wrong_gradients(recordings: Iterable[Recording], exempt: Exempt) -> list[WrongGradient]:
    """Return each run's first loss or gradient that differs from the workload's recomputation."""
    breaches = (
        (recording.name, recording.log(GradientLog).first(exempt.judges))
        for recording in recordings
    )
    return [WrongGradient(name, breach) for name, breach in breaches if breach is not None]


@gate
def workload_gradients(case: Case) -> Ruling | None:
    """Fail the check if losses or gradients are not those of the workload's model and loss."""
    wrong = wrong_gradients(case.judged, case.terms.exempt)
    if not wrong:
        return None
    return failed(gradient_headline(wrong), [GRADIENT_ADVICE])


def wrong_alone(case: RecordedCase) -> GradientBreach | None:
    """Return the candidate's first wrong gradient, unless the reference has one, too."""
    candidate_wrong_gradients, reference_wrong_gradients = (
        wrong_gradients([side], case.exempt) for side in case.sides
    )
    return (
        candidate_wrong_gradients[0].breach
        if candidate_wrong_gradients and not reference_wrong_gradients
        else None
    )


def gradient_headline(wrong: Sequence[WrongGradient]) -> str:
    """Return one line: which loss or gradient is wrong, how far, and which mistake explains it."""
    first = wrong[0].breach
    who = "both sides" if len(wrong) > 1 else f"the {wrong[0].side}"
    on = "" if first.rank is None else f" on rank {first.rank}"
    return (
        f"{first.kind} of {first.name}{on} is not what the workload gives at step {first.step} in "
        f"{who}: {first.words or UNKNOWN}; off by {first.off:.2g} of it, where rounding explains "
        f"{first.bound:.2g}"
    )


def gradient_lines(recording: Recording, exempt: Exempt) -> list[str]:
    """Return a line that explains a run's wrong gradient; empty if none is wrong."""
    return [
        f"Of the {recording.name}: {breach.kind} of {breach.name} is not what the workload "
        f"gives at step {breach.step}: {breach.words}"
        for _, breach in wrong_gradients([recording], exempt)
        if breach.words
    ]


def gradients_explained(case: RecordedCase, diagnosis: object) -> list[str]:
    """Return `gradient_lines` of both sides of a difference."""
    return [line for side in case.whole.sides for line in gradient_lines(side, case.exempt)]


def gradient_summary(log: GradientLog, exempt: Exempt) -> dict[str, Any]:
    """Return as a dict how many gradients were recomputed, and how large the worst error is.

    The first wrong one is its `breach`. If none was recomputed, only the reason is returned.

    Args:
        log: of the run.
        exempt: what the test has not judged.
    """
    off = exempt.all or exempt.reasons().get("grad", "")
    if off or log.silent:
        return {"silent": off or log.silent}
    summary: dict[str, Any] = {"judged": log.judged, "worst": log.worst}
    breach = log.first(exempt.judges)
    if breach is not None:
        said = asdict(breach).items()
        summary["breach"] = {key: value for key, value in said if value is not None}
    return summary
