"""Plain gradients: losses and gradients that are not those of the workload, in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pytest_precision.parity.self_checks.exempt import Exempt
from pytest_precision.trace.gradient_log import GradientBreach, GradientLog
from pytest_precision.trace.recording import Recording

NO_RULE = "no wrong rule that is known explains it"

GRADIENT_ADVICE = (
    "The workload's own model and loss, at the weights that this side has used, give others. If "
    'that is meant, oracle={"grad": unchecked(reason=...)} turns this judgement off.'
)


class WrongGradient(NamedTuple):
    """A side with a loss or a gradient that is not the workload's."""

    side: str
    breach: GradientBreach


def wrong_gradients(sides: Iterable[Recording], exempt: Exempt) -> list[WrongGradient]:
    """Return the sides with a loss or a gradient that is not the workload's."""
    found = ((side.name, side.gradients.first(exempt.judges)) for side in sides)
    return [WrongGradient(name, breach) for name, breach in found if breach is not None]


def gradient_headline(wrong: Sequence[WrongGradient]) -> str:
    """Say on one line which loss or gradient is not the workload's, and by which wrong rule."""
    first = wrong[0].breach
    who = "both sides" if len(wrong) > 1 else f"the {wrong[0].side}"
    on = "" if first.rank is None else f" on rank {first.rank}"
    return (
        f"{first.kind} of {first.name}{on} is not what the workload gives at step {first.step} in "
        f"{who}: {first.words or NO_RULE}; off by {first.off:.2g} of it, where rounding explains "
        f"{first.bound:.2g}"
    )


def gradient_lines(side: Recording, exempt: Exempt) -> list[str]:
    """Return the line below a divergence that says which wrong rule a side follows, if one fits."""
    return [
        f"Of the {one.side}: {one.breach.kind} of {one.breach.name} is not what the workload gives "
        f"at step {one.breach.step}: {one.breach.words}"
        for one in wrong_gradients([side], exempt)
        if one.breach.words
    ]


def gradient_summary(log: GradientLog, exempt: Exempt) -> dict[str, Any]:
    """Return what was computed once more of one run as builtins; only the reason where nothing was.

    Args:
        log: of the run.
        exempt: what the test has not judged.
    """
    off = exempt.all or exempt.reasons().get("grad", "")
    if off or log.silent:
        return {"silent": off or log.silent}
    return {"judged": log.judged, "worst": log.worst}
