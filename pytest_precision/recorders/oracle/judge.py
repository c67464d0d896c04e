"""Judge: compare the state after a step with the rule, and name the wrong rule that fits it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.engine.observation import Chunk, Observation
from pytest_precision.recorders.oracle.plan import UpdatePlan
from pytest_precision.recorders.oracle.rounding import Rounding
from pytest_precision.recorders.oracle.update import Roundings, State, UpdateScalars
from pytest_precision.recorders.oracle.wrong import WrongRule, wrong_rules
from pytest_precision.recorders.weights import CHUNK
from pytest_precision.trace.oracle_log import Breach


class Clipping(NamedTuple):
    """What becomes of reduced gradients before the optimizer reads them.

    Attributes:
        factor: of unscaling and clipping together.
        rounding: of the result.
        wrong: what a wrong clipping would be, in words, and its factor on top of `factor`.
        forms: such factors of the legitimate ways to clip, the most common one first.
    """

    factor: float
    rounding: Rounding
    wrong: tuple[str, float] | None = None
    forms: tuple[float, ...] = (1.0,)


class Segment(NamedTuple):
    """Neighbouring elements of a piece of a logical tensor, before and after a step.

    Attributes:
        order: position of the piece in the optimizer's order.
        piece: which piece it is.
        start: number of its first element in the flattened piece.
        before: the state before the step, as stored.
        after: the moments and the weight after it.
    """

    order: int
    piece: Observation
    start: int
    before: State
    after: tuple[Tensor, ...]

    @classmethod
    def of(
        cls, order: int, piece: Observation, before: State, after: Sequence[Tensor]
    ) -> Iterator[Segment]:
        """Yield a piece in segments of at most a chunk; an empty piece has none."""
        chunk, size = CHUNK[after[0].device.type], after[0].numel()
        if 0 < size <= chunk:
            yield cls(order, piece, 0, before, tuple(after))
            return
        for start in range(0, size, chunk):
            own = slice(start, start + chunk)
            old = State.of([tensor[own] for tensor in before.tensors])
            yield cls(order, piece, start, old, tuple(tensor[own] for tensor in after))

    @property
    def size(self) -> int:
        """Return the number of elements."""
        return self.after[0].numel()


@dataclass(frozen=True)
class Batch:
    """Segments of one group with one storage, one after the other.

    Attributes:
        group: number of the parameter group in the workload.
        storage: roundings of the state.
        segments: what it consists of.
        before: the state before the step, as stored.
        clipping: of the reduced gradient.
        after: moments and weight after the step.
    """

    group: int
    storage: Roundings
    segments: Sequence[Segment]
    before: State
    clipping: Clipping
    after: tuple[Tensor, ...]

    @classmethod
    def of(
        cls, group: int, storage: Roundings, clipping: Clipping, segments: Sequence[Segment]
    ) -> Batch:
        """Put segments together."""
        columns = zip(*(own.before.tensors for own in segments), strict=True)
        before = State.of([*map(torch.cat, columns)])
        after = tuple(map(torch.cat, zip(*(own.after for own in segments), strict=True)))
        return cls(group, storage, segments, before, clipping, after)

    def ratios(
        self, scalars: UpdateScalars, storage: Roundings, factor: float = 1.0
    ) -> Iterator[tuple[Tensor, Tensor, float]]:
        """Yield, per kind, what a rule gives, each error as a share of its bound, and the largest.

        Args:
            scalars: the rule's.
            storage: roundings of the state.
            factor: of the gradient that the right rule reads.
        """
        # Copies also of fp64, since all that follows is computed in place.
        old = State.of([own.to(torch.float64, copy=True) for own in self.before.tensors])
        old.gradient.mul_(self.clipping.factor * factor)
        for (exact, bound), after in zip(scalars.stepped(old, storage), self.after, strict=True):
            ratio = (after.double() - exact).abs_().div_(bound)
            if not isfinite(largest := float(ratio.max())):  # NaN where any is
                ratio = self._finite(ratio, exact, after)
                largest = float(ratio.max())
            yield exact, ratio, largest

    def worst(self, scalars: UpdateScalars, storage: Roundings, factor: float = 1.0) -> float:
        """Return the largest of these shares."""
        return max(largest for *_, largest in self.ratios(scalars, storage, factor))

    def _finite(self, ratio: Tensor, exact: Tensor, after: Tensor) -> Tensor:
        """Return `ratio` with infinity where a finite number should have come, but did not."""
        lost = exact.isfinite() & ~after.isfinite()
        return torch.where(lost, torch.inf, ratio.nan_to_num_(0.0, posinf=0.0))


class Judge:
    """Judges steps by one plan.

    Attributes:
        plan: what the workload declares.
        worst: largest share of a bound so far, of steps within it.
    """

    def __init__(self, plan: UpdatePlan) -> None:
        self.plan = plan
        self.worst = 0.0
        self._usual = 0

    def breaches(self, batches: Sequence[Batch], step: int, made: int) -> list[Breach]:
        """List the breaches of a step after `made` others: one of each tensor that has any."""
        return [breach for batch in batches for breach in self._of(batch, step, made)]

    def _scalars(self, group: int, made: int) -> list[UpdateScalars]:
        """Return those of the right rule, in each arithmetic."""
        own = self.plan.at(made)[group]
        return [arithmetic(own, made + 1) for arithmetic in self.plan.formula.arithmetics]

    def _ways(self, batch: Batch, made: int) -> list[tuple[UpdateScalars, float]]:
        """Return the legitimate scalars of a step, each with a legitimate factor of gradients."""
        return [*product(self._scalars(batch.group, made), batch.clipping.forms)]

    def _of(self, batch: Batch, step: int, made: int) -> list[Breach]:
        ways = self._ways(batch, made)
        order = sorted(range(len(ways)), key=lambda number: number != self._usual)
        shares = {}
        for number in order:
            scalars, factor = ways[number]
            shares[number] = batch.worst(scalars, batch.storage, factor)
            if shares[number] <= 1:
                self._usual = number
                self.worst = max(self.worst, shares[number])
                return []
        kinds = (*self.plan.formula.moments, "master")
        found = [_located(batch, way, kinds, step) for way in ways]
        # What is right by the closest way must not be accused for what is wrong by all of them.
        closest = min(shares, key=lambda number: (len(found[number]), shares[number]))
        return found[closest]

    def fitting(
        self, batches: Sequence[Batch], made: int, among: Sequence[str] | None = None
    ) -> list[str]:
        """Return the wrong rules, in words, that explain all of a step that breaks the right one.

        Args:
            batches: of the step.
            made: number of steps before.
            among: those that explain earlier steps; all that are known unless given.
        """
        right = [self._right(batch, made) for batch in batches]
        alive = among
        # The batches that the right rule does not explain leave few of the wrong ones.
        for number in sorted(range(len(batches)), key=lambda number: right[number]):
            tried = self._tried(batches[number], made, alive)
            if alive is None:
                alive = [*tried]
            # A rule that is no other one here, such as one of decay where there is none.
            alive = [words for words in alive if tried.get(words, right[number])]
        return [*(alive or ())]

    def _right(self, batch: Batch, made: int) -> bool:
        ways = self._ways(batch, made)
        return any(batch.worst(own, batch.storage, factor) <= 1 for own, factor in ways)

    def _tried(self, batch: Batch, made: int, among: Sequence[str] | None) -> dict[str, bool]:
        """Return wrong rule to whether it explains a batch."""
        tried: dict[str, bool] = {}
        for arithmetic, right in zip(
            self.plan.formula.arithmetics, self._scalars(batch.group, made), strict=True
        ):
            rules = [*wrong_rules(self.plan, batch.group, made, arithmetic)]
            if batch.clipping.wrong is not None:
                words, factor = batch.clipping.wrong
                rules.append(WrongRule(words, right, factor=factor))
            for wrong in rules:
                words = wrong.words
                if (among is None or words in among) and not tried.get(words):
                    tried[words] = _fits(batch, wrong)
        return tried


def _fits(batch: Batch, wrong: WrongRule) -> bool:
    storage, factors = wrong.storage(batch.storage), batch.clipping.forms
    if all(batch.worst(wrong.scalars, storage, wrong.factor * own) > 1 for own in factors):
        return False
    if wrong.rounded is None:
        return True
    held = batch.after[wrong.rounded]
    return torch.equal(held.to(wrong.dtype).to(held.dtype), held)


def _located(
    batch: Batch, way: tuple[UpdateScalars, float], kinds: Sequence[str], step: int
) -> list[Breach]:
    """List the breaches of a batch, of each piece of a tensor the one that is furthest off."""
    found = []
    for kind, (exact, ratio, _) in enumerate(batch.ratios(way[0], batch.storage, way[1])):
        start = 0
        for segment in batch.segments:
            own = ratio[start : start + segment.size]
            place = int(own.argmax())
            if float(own[place]) > 1:
                wrong = float(batch.after[kind][start + place])
                found.append(
                    Breach(
                        step,
                        (kind, segment.order),
                        kinds[kind],
                        segment.piece.name,
                        _index(segment.piece, segment.start + place),
                        float(exact[start + place]),
                        wrong,
                        float(own[place]),
                        batch.group,
                    )
                )
            start += segment.size
    return found


def _index(piece: Observation, place: int) -> tuple[int, ...]:
    """Return the index in the logical tensor of an element of a flattened piece."""
    if isinstance(piece.place, Chunk):
        inside = torch.unravel_index(torch.tensor(place), piece.place.sizes)
        return tuple(
            int(own) + offset for own, offset in zip(inside, piece.place.offsets, strict=True)
        )
    whole = torch.unravel_index(torch.tensor(piece.place.start + place), piece.shape)
    return tuple(map(int, whole))
