"""Loss rules: name the mistake in the loss (a mask, an auxiliary loss) that explains gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pytest_precision.recorders.gradients.fit import (
    NEAR_ONE,
    dealt_to,
    fit_by,
    fit_by_dealt,
)
from pytest_precision.recorders.gradients.plain import PlainLoop, PlainMicrobatch


class Unexplained(NamedTuple):
    """Wrong losses or gradients of one rank in one train step, for which a cause is sought.

    Attributes:
        found: `HeldGradient` ones.
        own: all microbatches of the step.
        loop: with the weights of the step.
        step: number of the train step.
        size: of the data-parallel dimension.
        near: what rounding leaves of a tensor at least.
    """

    found: Sequence[Any]
    own: Sequence[PlainMicrobatch]
    loop: PlainLoop
    step: int
    size: int
    near: float


def wrong_loss(wrong: Unexplained) -> str:
    """Return in words the mistake in the loss that explains the gradients; empty if none does."""
    found, own, loop, step, size, near = wrong
    if loop.is_masked(step):
        fit = fit_by_dealt(found, [*loop.microbatches(step, "unmasked")], size, near)
        if fit and max(fit.counts) - min(fit.counts) <= NEAR_ONE * max(fit.counts):
            return "positions that a mask leaves out are in the loss"
    dealt = dealt_to(found, own, size)
    numbers = {one.number for one in dealt}
    auxiliary = [
        one
        for one in loop.microbatches(step, "auxiliary")
        if one.number in numbers and one.gradients
    ]
    fit = fit_by(found, [*dealt, *auxiliary], near) if auxiliary else None
    if fit is None or any(abs(count - 1) > NEAR_ONE for count in fit.counts[: len(dealt)]):
        return ""
    times = [1 + count for count in fit.counts[len(dealt) :]]
    return f"the auxiliary loss {_counted(times, auxiliary, own)}"


def _counted(
    times: Sequence[float], auxiliary: Sequence[PlainMicrobatch], own: Sequence[PlainMicrobatch]
) -> str:
    """Return in words how often the auxiliary losses of microbatches count."""
    tokens = sum(one.tokens for one in own)

    def like(expected: Sequence[float]) -> bool:
        pairs = zip(times, expected, strict=True)
        return all(abs(time - wanted) <= NEAR_ONE * wanted for time, wanted in pairs)

    if all(one.tokens for one in auxiliary):
        if like([tokens / one.tokens for one in auxiliary]):
            return "is a mean of each microbatch alone"
        if like([tokens / one.tokens / len(own) for one in auxiliary]):
            return "is a mean of the means of microbatches"
    if like([times[0]] * len(times)):
        return f"counts {times[0]:.3g} times"
    return f"of its microbatches counts {', '.join(f'{one:.3g}' for one in times)} times"
