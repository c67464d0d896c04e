"""Concatenate weights of equal dtypes, with their states around a step, to check the update.

`Judge` compares that with the fp64 result of the workload's declared rule.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import isfinite
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.engine.observation import Observation, index_within
from pytest_precision.probes.declared_rule.oracle.plan import UpdatePlan
from pytest_precision.probes.declared_rule.oracle.update import (
    Rounding,
    Roundings,
    State,
    UpdateScalars,
)
from pytest_precision.probes.declared_rule.oracle_log import Breach, OracleLog
from pytest_precision.recorders.weights import IN_CACHE, concatenated, lists_of_at_most


class Clipping(NamedTuple):
    """The factor by which gradients are clipped before the optimizer reads them.

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


class PiecePart(NamedTuple):
    """A range of elements of a rank's shard, with its optimizer state before and after a step.

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

    @property
    def size(self) -> int:
        """Return the number of elements in this range of a shard."""
        return self.after[0].numel()

    def cut(self, most: int) -> Iterator[PiecePart]:
        """Yield the ranges of this one, each of at most so many elements; none if it is empty."""
        if 0 < self.size <= most:
            yield self
            return
        for start in range(0, self.size, most):
            span = slice(start, start + most)
            before = State.of([tensor[span] for tensor in self.before.tensors])
            after = tuple(tensor[span] for tensor in self.after)
            yield self._replace(start=self.start + start, before=before, after=after)


@dataclass(frozen=True)
class Batch:
    """Shards of one parameter group that have the same dtypes, to check an update of all of them.

    They are concatenated when they are asked for: what is on a device stays there, and takes more
    memory of it for one batch alone.

    Attributes:
        group: number of the parameter group in the workload.
        storage: roundings of the state.
        clipping: of the reduced gradient.
        parts: what it consists of.
    """

    group: int
    storage: Roundings
    clipping: Clipping
    parts: Sequence[PiecePart]

    @property
    def device(self) -> torch.device:
        """Return where rules are computed; the state before the step is on the host until then."""
        return self.parts[0].after[0].device

    @property
    def after(self) -> tuple[Tensor, ...]:
        """Return the moments and the weights after the step, as stored."""
        return tuple(map(concatenated, zip(*(part.after for part in self.parts), strict=True)))

    def ratios(
        self, scalars: UpdateScalars, storage: Roundings, factor: float
    ) -> list[tuple[Tensor, Tensor]]:
        """Return (fp64 result, |run - fp64| / bound) of each moment and the weight.

        Args:
            scalars: the rule's.
            storage: roundings of the state.
            factor: of the gradient that the right rule reads.
        """
        stepped = scalars.stepped(self._old_state(factor), storage)
        pairs = []
        for (exact, bound), after in zip(stepped, self.after, strict=True):
            lost = exact.isfinite() & ~after.isfinite()
            ratio = _ratio(exact.clone(), bound, after).nan_to_num_(0.0, posinf=0.0)
            pairs.append((exact, ratio.where(~lost, torch.inf)))
        return pairs

    def worst(self, scalars: UpdateScalars, storage: Roundings, factor: float = 1.0) -> float:
        """Return the batch's largest error under an optimizer rule, as a share of its bound."""
        return max(batch._largest(scalars, storage, factor) for batch in self._in_cache())

    def _largest(self, scalars: UpdateScalars, storage: Roundings, factor: float) -> float:
        """Return the largest of the `ratios`.

        It waits for a device once, unless something is not finite, and keeps no temporary that it
        can do without, so that all of them stay in the cache.
        """
        stepped = scalars.stepped(self._old_state(factor), storage)
        pairs = zip(stepped, self.after, strict=True)
        largest = _maximum(_ratio(*rounded, after) for rounded, after in pairs)
        if not isfinite(largest):  # NaN where any is
            largest = _maximum(ratio for _, ratio in self.ratios(scalars, storage, factor))
        return largest

    def _in_cache(self) -> Iterator[Batch]:
        """Yield this batch in pieces whose temporaries stay in a CPU's cache; on a GPU, itself."""
        if self.device.type != "cpu":
            yield self
            return
        cuts = (cut for part in self.parts for cut in part.cut(IN_CACHE))
        for parts in lists_of_at_most(cuts, IN_CACHE):
            yield replace(self, parts=parts)

    def exact_state(self, scalars: UpdateScalars, factor: float) -> tuple[Tensor, Tensor]:
        """Return fp64 moments and weights by a rule from gradients * `factor`, with error bounds.

        Args:
            scalars: of the rule.
            factor: of the gradient that the right rule reads.
        """
        columns = zip(*scalars.stepped(self._old_state(factor), self.storage), strict=True)
        exact, bound = map(torch.cat, columns)
        return exact, bound

    @property
    def run_state(self) -> Tensor:
        """Return the run's moments and weights after the step, concatenated, in fp64."""
        return torch.cat([tensor.to(self.device, torch.float64) for tensor in self.after])

    def _old_state(self, factor: float) -> State:
        """Return the fp64 state before the step, its gradient times clip factor and `factor`."""
        # Copies also of fp64, since all that follows is computed in place.
        columns = zip(*(part.before.tensors for part in self.parts), strict=True)
        old = State.of(
            [
                tensor.to(self.device, torch.float64, copy=True)
                for tensor in map(concatenated, columns)
            ]
        )
        old.gradient.mul_(self.clipping.factor * factor)
        return old


def _ratio(exact: Tensor, bound: Tensor, after: Tensor) -> Tensor:
    """Return |run - fp64| / bound, in the memory of the fp64 result."""
    return exact.sub_(after).abs_().div_(bound)


def _maximum(ratios: Iterable[Tensor]) -> float:
    """Return the largest number of all tensors, for which the host waits once; NaN if one is."""
    return float(torch.stack([ratio.amax() for ratio in ratios]).amax())


class Judge:
    """Compares a run's weight updates with those of the optimizer rule that its test declares.

    Args:
        plan: what the workload declares.
        log: takes how near the rule was.
    """

    def __init__(self, plan: UpdatePlan, log: OracleLog) -> None:
        self._plan = plan
        self._log = log
        log.groups = len(plan.at(0))
        self._usual = 0

    def breaches(self, batch: Batch, step: int, steps_done: int) -> list[Breach]:
        """Return each wrong tensor's worst element; [] if the step followed the declared rule."""
        options, formula = self._plan.at(steps_done)[batch.group], self._plan.formula
        scalars = [arithmetic(options, steps_done + 1) for arithmetic in formula.arithmetics]
        ways = [*product(scalars, batch.clipping.forms)]
        order = sorted(range(len(ways)), key=lambda number: number != self._usual)
        shares = {}
        for number in order:
            right, factor = ways[number]
            shares[number] = batch.worst(right, batch.storage, factor)
            if shares[number] <= 1:
                self._usual = number
                self._log.worst = max(self._log.worst, shares[number])
                return []
        kinds = (*formula.moments, "master")
        beyond = [_beyond(batch, way) for way in ways]
        # What is right by the closest way must not be accused for what is wrong by all of them.
        closest = min(shares, key=lambda number: (len(beyond[number]), shares[number]))
        return [
            Breach(
                step,
                (worst.kind, worst.part.order),
                kinds[worst.kind],
                worst.part.piece.name,
                index_within(worst.part.piece, worst.part.start + worst.place),
                worst.expected,
                worst.got,
                worst.ratio,
                batch.group,
            )
            for worst in beyond[closest]
        ]


class _Worst(NamedTuple):
    """The worst element of a range of a shard.

    Attributes:
        kind: number of the moment, or of the weight after them.
        part: the range.
        place: number of the element in it.
        expected: what the rule gives.
        got: what the state holds.
        ratio: of the error to its bound.
    """

    kind: int
    part: PiecePart
    place: int
    expected: float
    got: float
    ratio: float


def _beyond(batch: Batch, way: tuple[UpdateScalars, float]) -> list[_Worst]:
    """Return the worst element of each tensor in which an update is off by more than its bound."""
    elements, run_state = [], batch.after
    for kind, (exact, ratio) in enumerate(batch.ratios(way[0], batch.storage, way[1])):
        start = 0
        for part in batch.parts:
            worst, place = map(float, ratio[start : start + part.size].max(0))
            if worst > 1:
                index = start + int(place)
                got = float(run_state[kind][index])
                elements.append(_Worst(kind, part, int(place), float(exact[index]), got, worst))
            start += part.size
    return elements
