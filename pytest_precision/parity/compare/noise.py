"""Measure how far rounding alone moves each tensor, by extra runs with random rounding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

from torch import Tensor

from pytest_precision.engine.kinds import STARTING_KINDS, causal_rank
from pytest_precision.parity.compare.logical_tensor import assemble
from pytest_precision.parity.compare.pairs import Pair, align
from pytest_precision.parity.compare.tensors import statistics
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Entry, Trace

FLIPPED = 1e-3
"""Share of the elements, one at least, that may be off in any case, see `error_of_flips`.

The runs draw few roundings of a tensor that has few of them; the candidate may have others.
"""

LARGEST_NOISE = 0.99
"""Largest relative error that a bound can be: what differs more is not the same tensor."""

NoisyTensor = tuple[str, str, int | None]
"""Kind and name of a tensor, and its rank where each rank has one of its own."""


class NoiseMeter:
    """Measures each tensor's error in extra runs of a reference that round at random.

    Args:
        reference: the run without noise.
        runs: those with noise, of the same operations.
        unit: unit in the last place of 1 in the dtype that the run computes in.
    """

    def __init__(self, reference: Trace, runs: Sequence[Trace], unit: float) -> None:
        self._reference = reference
        self._runs = runs
        self._unit = unit
        self._spreads: dict[Moment, dict[NoisyTensor, float]] = {}
        self._reached: dict[Moment, set[str]] = {}

    def bound(self, pair: Pair, moment: Moment, safety: float) -> float:
        """Return the relative L2 error to allow in one tensor, from its errors in the extra runs.

        Args:
            pair: what is compared.
            moment: of the reference.
            safety: times that the largest error of the runs is allowed.
        """
        if moment not in self._spreads:
            spreads = self._spreads[moment] = self._measured(moment)
            self._reached[moment] = {kind for (kind, _, _), error in spreads.items() if error}
        spread = self._spreads[moment].get((pair.kind, pair.name, pair.rank), 0.0)
        tensor = None if pair.reference is None else pair.reference.tensor
        floor = 0.0
        if pair.kind in self._reached[moment] and tensor is not None:
            floor = error_of_flips(tensor, self._unit, self._starts.get((pair.kind, pair.name)))
        return min(max(safety * spread, floor), LARGEST_NOISE)

    @property
    def largest(self) -> dict[str, dict[str, float | str]]:
        """Return each kind's largest relative L2 error in the extra runs, and the tensor with it.

        Only moments count for whose tensors a bound was asked for.
        """
        largest: dict[str, dict[str, float | str]] = {}
        spreads = (item for errors in self._spreads.values() for item in errors.items())
        for (kind, name, _), error in sorted(spreads, key=lambda item: item[1]):
            if error:
                largest[kind] = {"rel_l2": error, "of": name}
        return {kind: largest[kind] for kind in sorted(largest, key=causal_rank)}

    @cached_property
    def _starts(self) -> dict[tuple[str, str], Tensor]:
        """Return a dict from each weight's (kind, name) to its first recorded value."""
        starts: dict[tuple[str, str], Tensor] = {}
        for key, pieces in weights_of(self._reference):
            whole = None if key in starts else assemble(self._reference, pieces).tensor
            if whole is not None:
                starts[key] = whole
        return starts

    def _measured(self, moment: Moment) -> dict[NoisyTensor, float]:
        errors: dict[NoisyTensor, float] = {}
        for run in self._runs:
            for pair in align(run, self._reference, (moment, moment)):
                key = pair.kind, pair.name, pair.rank
                errors[key] = max(errors.get(key, 0.0), error_of(pair))
        return errors


def weights_of(trace: Trace) -> Iterator[tuple[tuple[str, str], list[Entry]]]:
    """Yield ((kind, name), ranks' pieces) of weights recorded with values, moment by moment."""
    for moment in trace.moments:
        for kind, named in trace.held(moment, STARTING_KINDS).items():
            for name, pieces in named.items():
                if not any(piece.digest for piece in pieces):
                    yield (kind, name), pieces


def error_of(pair: Pair) -> float:
    """Return the relative L2 error between both tensors of a pair; 0 if they cannot be compared."""
    if pair.tensors is None or pair.is_alike:
        return 0.0
    ours, theirs = pair.tensors
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return 0.0
    error = statistics(ours, theirs).rel_l2
    return error if math.isfinite(error) else LARGEST_NOISE


def error_of_flips(tensor: Tensor, unit: float, start: Tensor | None = None) -> float:
    """Return a tensor's relative L2 error if a share `FLIPPED` of it had the worst rounding error.

    Args:
        tensor: any tensor; integers cannot be off.
        unit: unit in the last place of 1.
        start: of a weight, what it was at first: an update that rounding gives the other sign, as
            Adam's of a gradient near zero, is off by twice itself.
    """
    if not tensor.is_floating_point() or tensor.dtype.itemsize == 1 or not tensor.numel():
        return 0.0
    values = tensor.double()
    most = unit * float(values.abs().max())
    if start is not None:
        most = max(most, 2 * float((values - start.double()).abs().max()))
    length = float(values.norm())
    number = max(1.0, FLIPPED * values.numel())
    return math.sqrt(number) * most / length if length else 0.0
