"""Name the mistake in a sum or in the loss that explains wrong gradients.

Each sum is fitted by the gradients of the step's microbatches: how often each counts is what a
divisor, a mask or a loop does wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch

from pytest_precision.probes.gradients.fit import (
    NEAR_ONE,
    ROOM_OF_FIT,
    Unexplained,
    UnlikeStep,
)
from pytest_precision.probes.gradients.held_gradient import HeldGradient
from pytest_precision.probes.gradients.plain import MOST_FITTED, PlainMicrobatch

BEFORE = 8
"""How many steps back the microbatches of a step are looked for."""

ENOUGH = 4
"""Elements for each microbatch from which how often it counts follows; fewer fit anything."""


def explained(step: UnlikeStep, wrong: Sequence[HeldGradient]) -> list[str]:
    """Return the known mistake that explains each wrong loss or gradient; empty if none does.

    Where those that are wrong have too few elements, all of the same kind and rank are fitted.
    """
    if len(step.microbatches) * sum(gradient.plain.numel() for gradient in wrong) > MOST_FITTED:
        return [""] * len(wrong)
    words: list[str] = []
    for (kind, rank), group in groupby(wrong, key=lambda gradient: (gradient.kind, gradient.rank)):
        unexplained = Unexplained([*group], step)
        fitted = unexplained
        elements = sum(gradient.plain.numel() for gradient in unexplained.gradients)
        if elements < ENOUGH * len(step.microbatches):
            fitted = step.of(kind, rank)
        if kind == "loss":
            mistake = _other_step(unexplained)
        else:
            mistake = (
                _recounted(fitted)
                or (kind == "grad" and _leftover(unexplained))
                or _wrong_loss(fitted)
                or _other_step(unexplained)
                or _borrowed(fitted)
            )
        if mistake and step.loop.tied.issuperset(
            gradient.name for gradient in unexplained.gradients
        ):
            mistake = f"{mistake}, as only the tied weight is"
        words += [mistake] * len(unexplained.gradients)
    return words


def _recounted(wrong: Unexplained) -> str:
    """Return words on how often each microbatch counts in wrong gradients; empty if unclear."""
    gradients, step = wrong
    if any(gradient.plain.any() for gradient in gradients) and not any(
        gradient.got.any() for gradient in gradients
    ):
        # In few bits, a division by many tokens is as near to it, but leaves no zeros.
        return "it is 0 times what it should be"
    microbatches, room = step.microbatches, ROOM_OF_FIT * step.near
    dealt = wrong.dealt(microbatches)
    fit = wrong.fit(dealt)
    if fit is not None:
        return next(_rules(fit.counts, dealt, step, room), "")
    fit = wrong.fit(microbatches) if len(dealt) < len(microbatches) else None
    if fit is None:
        return _factor(gradients, room)
    counted = [
        batch.number
        for batch, count in zip(microbatches, fit.counts, strict=True)
        if batch.tokens and abs(count) > room
    ]
    expected = [batch.number for batch in dealt]
    return f"it is of microbatches {_listed(counted)} instead of {_listed(expected)}"


def _listed(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))


def _leftover(wrong: Unexplained) -> str:
    """Return words on how much of the previous step's gradient is left in this one, or empty."""
    gradients, step = wrong
    shown = step.before[gradients[0].rank or 0].grad if step.before else []
    old = {piece.name: piece.tensor for piece in shown}
    if any(gradient.name not in old for gradient in gradients):
        return ""
    more = torch.cat([(gradient.got - gradient.plain).reshape(-1) for gradient in gradients])
    before = torch.cat([old[gradient.name].double().reshape(-1) for gradient in gradients])
    if not float(before.norm()):
        return ""
    factor = float(more @ before) / float(before @ before)
    rounding = step.near * sum(float(gradient.plain.norm()) for gradient in gradients)
    if float((more - factor * before).norm()) > max(rounding, step.near * float(more.norm())):
        return ""
    return f"{factor:.3g} times the gradient of the step before is left in it"


def _rules(
    counts: Sequence[float], dealt: Sequence[PlainMicrobatch], step: UnlikeStep, room: float
) -> Iterator[str]:
    """Yield in words known mistakes that explain how often each microbatch counts in a gradient.

    Args:
        counts: how often each of `dealt` counts.
        dealt: the microbatches of a rank, or all.
        step: has all microbatches.
        room: by which a count may be off.
    """
    microbatches = step.microbatches
    tokens = sum(batch.tokens for batch in microbatches)

    def like(expected: Sequence[float]) -> bool:
        return all(
            abs(count - expected_count) <= room * max(abs(expected_count), 1.0)
            for count, expected_count in zip(counts, expected, strict=True)
        )

    if len(dealt) > 1 and all(batch.tokens for batch in dealt):
        for number, whose in (
            (len(microbatches), "all microbatches"),
            (len(dealt), "the rank's microbatches"),
        ):
            if like([tokens / batch.tokens / number for batch in dealt]):
                yield f"it is a mean of the means of {whose}"
        if like([tokens / batch.tokens for batch in dealt]):
            yield "each microbatch is divided by its own tokens alone"
    fit = [
        (divisor, words)
        for divisor, words in _divisors(dealt, microbatches, step.size)
        if divisor and abs(divisor - 1) > room and like([1 / divisor] * len(counts))
    ]
    if fit:  # several have one divisor where there are as many microbatches as ranks
        yield f"it is {' or '.join(words for divisor, words in fit if divisor == fit[0][0])}"
    yield from _singled_out(counts, dealt, room)
    if max(counts) - min(counts) <= room * max(map(abs, counts)):
        yield f"it is {counts[0] + 0.0:.3g} times what it should be"  # never "-0 times"
    rounded = (round(count, 3) + 0.0 for count in counts)  # the sign of 0 depends on the machine
    yield f"its microbatches count {', '.join(f'{count:g}' for count in rounded)} times"


def _divisors(
    dealt: Sequence[PlainMicrobatch], microbatches: Sequence[PlainMicrobatch], size: int
) -> Iterator[tuple[float, str]]:
    """Yield (divisor, words) per wrong way to divide a gradient; divisor 0 if it cannot occur."""
    tokens = sum(batch.tokens for batch in microbatches)
    rank_tokens = sum(batch.tokens for batch in dealt)
    # There are no positions where all tensors are floats.
    positions = sum(batch.positions for batch in microbatches) or tokens
    # A sum over ranks has the tokens and the microbatches of all of them, and no rank's own.
    of_rank = len(dealt) < len(microbatches)
    by_own = rank_tokens / tokens if of_rank else 0.0
    yield by_own, "divided by the rank's own tokens"
    yield size * by_own, "divided by the rank's own tokens, and by the ranks"
    yield 1 / tokens, "not divided by the tokens"
    yield float(tokens), "divided by the tokens twice"
    yield float(len(microbatches)), "divided by the microbatches, too"
    yield float(of_rank * len(dealt)), "divided by the rank's microbatches, too"
    yield positions / tokens, "divided by all positions, also those that do not count"
    yield float(size), "divided by the ranks, too"
    yield 1.0 / size, "multiplied by the ranks"


def _singled_out(
    counts: Sequence[float], dealt: Sequence[PlainMicrobatch], room: float
) -> Iterator[str]:
    """Yield words on which microbatches count a wrong number of times, if others count once."""
    ones = [
        batch.number for batch, count in zip(dealt, counts, strict=True) if abs(count - 1) > room
    ]
    if 0 < len(ones) < len(dealt):
        kinds = {round(counts[[d.number for d in dealt].index(number)], 2) for number in ones}
        several = len(ones) > 1
        which = f"microbatch{'es' * several} {_listed(ones)}"
        count = "count" if several else "counts"
        if kinds == {0.0}:
            yield f"{which} {'are' if several else 'is'} left out"
        elif kinds == {2.0}:
            yield f"{which} {count} twice"
        else:
            yield f"{which} {count} {', '.join(f'{kind:g}' for kind in sorted(kinds))} times"


def _factor(gradients: Sequence[HeldGradient], room: float) -> str:
    """Return in words the constant factor by which the gradients are wrong; empty if none fits."""
    got = torch.cat([gradient.got.reshape(-1) for gradient in gradients])
    plain = torch.cat([gradient.plain.reshape(-1) for gradient in gradients])
    if not float(plain.norm()):
        return ""
    factor = float(got @ plain) / float(plain @ plain)
    left = float((got - factor * plain).norm())
    if factor and left <= room * abs(factor) * float(plain.norm()):
        return f"it is {factor:.3g} times what it should be"
    return ""


def _other_step(wrong: Unexplained) -> str:
    """Name the other step whose microbatches were wrongly trained on; empty if none."""
    gradients, step = wrong
    number, room = step.first.step, ROOM_OF_FIT * step.near
    for other in (number + 1, *range(number - 1, max(number - BEFORE, 0), -1), 0):
        microbatches = [*step.loop.microbatches(other)]
        if gradients[0].kind == "loss":
            losses = {f"microbatch {batch.number}": batch.loss for batch in microbatches}
            same = all(
                abs(float(gradient.got) - losses.get(gradient.name, float("inf")))
                <= room * abs(float(gradient.got))
                for gradient in gradients
            )
        else:
            fit = wrong.fit(wrong.dealt(microbatches))
            same = fit is not None and all(abs(count - 1) <= room for count in fit.counts)
        if same:
            return f"the microbatches are those of {_step(other)}"
    return ""


def _step(number: int) -> str:
    return f"step {number}" if number else "the evaluation"


def _borrowed(wrong: Unexplained) -> str:
    """Return words on microbatches of a neighbouring step used by mistake; empty if none."""
    step = wrong.step
    dealt = wrong.dealt(step.microbatches)
    tokens = sum(batch.tokens for batch in step.microbatches)
    for other in (step.first.step - 1, step.first.step + 1):
        microbatches = [*step.loop.microbatches(other)]
        columns = [*dealt, *microbatches]
        if sum(gradient.plain.numel() for gradient in wrong.gradients) < ENOUGH * len(columns):
            return ""
        fit = wrong.fit(columns)
        if fit is None:
            continue
        # What a microbatch of another step gives is divided by the tokens of this one.
        share = sum(batch.tokens for batch in microbatches) / tokens
        whole = [1.0] * len(dealt) + [share] * len(microbatches)
        counts = [count / expected for count, expected in zip(fit.counts, whole, strict=True)]
        if any(min(abs(count), abs(count - 1)) > NEAR_ONE for count in counts):
            continue
        mine, theirs = counts[: len(dealt)], counts[len(dealt) :]
        lacking = [batch.number for batch, count in zip(dealt, mine, strict=True) if count < 0.5]
        instead = [
            batch.number for batch, count in zip(microbatches, theirs, strict=True) if count > 0.5
        ]
        if lacking and instead:
            return (
                f"microbatch {_listed(lacking)} is left out, and microbatch {_listed(instead)} of "
                f"{_step(other)} counts instead"
            )
    return ""


def _wrong_loss(wrong: Unexplained) -> str:
    """Return words on the mask or auxiliary loss mistake behind wrong gradients; empty if none."""
    step = wrong.step
    if step.loop.is_masked(step.first.step):
        fit = wrong.fit(wrong.dealt([*step.loop.microbatches(step.first.step, "unmasked")]))
        if fit and max(fit.counts) - min(fit.counts) <= NEAR_ONE * max(fit.counts):
            return "positions that a mask leaves out are in the loss"
    dealt = wrong.dealt(step.microbatches)
    microbatches = wrong.dealt([*step.loop.microbatches(step.first.step, "auxiliary")])
    auxiliary = [batch for batch in microbatches if batch.gradients]
    fit = wrong.fit([*dealt, *auxiliary]) if auxiliary else None
    if fit is None or any(abs(count - 1) > NEAR_ONE for count in fit.counts[: len(dealt)]):
        return ""
    times = [1 + count for count in fit.counts[len(dealt) :]]
    return f"the auxiliary loss {_counted(times, auxiliary, step.microbatches)}"


def _counted(
    times: Sequence[float],
    auxiliary: Sequence[PlainMicrobatch],
    microbatches: Sequence[PlainMicrobatch],
) -> str:
    """Return words on the wrong weight of auxiliary losses, such as `counts 2 times`."""
    tokens = sum(batch.tokens for batch in microbatches)

    def like(expected: Sequence[float]) -> bool:
        pairs = zip(times, expected, strict=True)
        return all(abs(time - target) <= NEAR_ONE * target for time, target in pairs)

    if all(batch.tokens for batch in auxiliary):
        if like([tokens / batch.tokens for batch in auxiliary]):
            return "is a mean of each microbatch alone"
        if like([tokens / batch.tokens / len(microbatches) for batch in auxiliary]):
            return "is a mean of the means of microbatches"
    if like([times[0]] * len(times)):
        return f"counts {times[0]:.3g} times"
    return f"of its microbatches counts {', '.join(f'{count:.3g}' for count in times)} times"
