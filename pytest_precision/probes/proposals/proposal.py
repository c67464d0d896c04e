"""Propose tolerances within which two sides that only round differently agree on new data.

Most tensors of a kind decide about its bound. Those that are much further off have a name and a
bound of their own, or none. A weight is off by a share of the way that it has gone, since both
sides start alike: one that starts at zero is further off than others by the size of that way.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import accumulate

import torch

from pytest_precision.engine.kinds import STARTING_KINDS, causal_rank
from pytest_precision.parity.compare.bit_patterns import FLOATS
from pytest_precision.parity.compare.bounds import Norm, Unchecked
from pytest_precision.parity.compare.criteria import DEFAULT
from pytest_precision.parity.compare.criterion import Criterion
from pytest_precision.probes.proposals.required_tolerance import (
    FLOOR,
    ROOM,
    ROOM_OF_NUMBERS,
    bounds,
    rounded_up,
)
from pytest_precision.probes.proposals.tensor_needs import (
    ComparedRun,
    Need,
    moved_by_noise,
    needs_of,
    shares_of,
    usual_error,
)

ROOM_OF_UPDATES = 4
"""Times what an update needed: it divides by the root of the second moment, so that one of a small
gradient is further off on other data than its gradient is."""

ROOM_OF_OUTLIERS = 8
"""Likewise of a tensor that is much further off than others: what rounding decides varies more."""

MOST_OF_AN_UPDATE = 0.2
"""Share of the way of a weight that a bound gives at most, if this data does not need more: half of
it, with what most weights differ in their ways, is too little to stand still."""

CANCELLED = 1000
"""How far the terms of a sum that is one element may cancel: it rounds as the terms do."""

LARGEST_BOUND = 0.3
"""Relative error from which a bound of one tensor says too little to be asked for."""

LEFT_OUT = Unchecked("rounding decides about it")
"""The criterion of a tensor that no bound below `LARGEST_BOUND` is for."""

EVERYWHERE = 4
"""Kinds in which a tensor is left out, from which one key leaves it out of all."""

GRADIENTS_AND_MEANS = ("grad", "reduced_grad", "final_grad", "exp_avg")
"""Kinds that are as far off as each other, in one step or another."""

NUMBERS_OF_A_STEP = ("loss", "grad_norm")
"""Kinds that are means or norms of many values, in which roundings cancel."""

STORED_OTHERWISE = 4
"""Part of a unit in the last place that a tensor is off of which one element in sixteen is stored
as its neighbour. Such weights also move a gradient by this part of what it is moved by where all
are rounded at random, since roundings add up as their root."""

CANCELLING = 16
"""How much less than gradients such a number is off at least."""

LEAST_OF_RESULTS = 1e-6
"""Relative error that losses and gradients are allowed in any case: twice what a backward in fp32
was measured to round, 3.2e-7, and eight units in the last place."""


def proposed(
    runs: Sequence[ComparedRun],
    unit: float,
    noise: ComparedRun | None = None,
    *,
    floors: bool = True,
) -> dict[str, Criterion] | None:
    """Return tolerances to propose, by kind and name; None if no tolerance makes all tensors pass.

    Args:
        runs: comparisons of the same two sides, on other data each.
        unit: unit in the last place of 1 in what both sides compute in.
        noise: the reference rounded at random, which shows what rounding decides about.
        floors: whether bounds are at least what rounding may come to where this data needs less.
    """
    if any(kind_bounds.unbounded for run in runs for kind_bounds in bounds(run.judgement).values()):
        return None
    needs, shares = needs_of(runs), shares_of(runs)
    noisy = {} if noise is None else needs_of([noise])
    moved = moved_by_noise(noisy, shares)
    rounding = 0.0
    if floors:
        later = ROOM * _error_of_gradients(noisy) / STORED_OTHERWISE
        rounding = max(unit, LEAST_OF_RESULTS, later)
    least = max(ROOM * _error_of_gradients(needs), rounding)
    tolerances: dict[str, Criterion] = {}
    for kind in sorted(needs, key=causal_rank):
        stored = _unit_stored(kind, runs) / STORED_OTHERWISE if floors else 0.0
        kind_tolerances = _of_kind(kind, needs[kind], shares, moved, least, stored)
        if kind_tolerances is None:
            return None
        tolerances |= kind_tolerances
    return _left_out_everywhere(tolerances)


def _error_of_gradients(needs: Mapping[str, Mapping[str, Need]]) -> float:
    """Return the largest relative error of gradients, leaving out outliers."""
    kinds = (needs.get(kind, {}).values() for kind in GRADIENTS_AND_MEANS)
    return max(
        usual_error([need.rel for need in kind_needs if need.numel > 1]) for kind_needs in kinds
    )


def _of_kind(
    kind: str,
    needs: Mapping[str, Need],
    shares: Mapping[tuple[str, str], float],
    moved: Mapping[tuple[str, str], float],
    least: float,
    stored: float,
) -> dict[str, Criterion] | None:
    """Return the tolerances for one kind of tensors, and separate ones by name for outliers.

    Args:
        kind: of the tensors.
        needs: what each of them needs.
        shares: of the weights.
        moved: how many times as far as others noise moves what it moves most.
        least: bound of the gradients, which all others follow from.
        stored: what the rounding to storage may come to.
    """
    many = {name: need.rel for name, need in needs.items() if need.numel > 1}
    if kind in NUMBERS_OF_A_STEP or not many:
        most = ROOM_OF_NUMBERS * max((need.rel for need in needs.values()), default=0.0)
        return _norm(kind, max(most, LEAST_OF_RESULTS, least / CANCELLING))
    weight = kind in STARTING_KINDS
    scale = {name: shares.get((kind, name), 1.0) if weight else 1.0 for name in needs}
    usual = usual_error([rel / scale[name] for name, rel in many.items() if rel and scale[name]])
    room = max((ROOM_OF_UPDATES if weight else ROOM) * usual, least)
    if weight:
        room = min(room, max(MOST_OF_AN_UPDATE, usual))
    if kind == "exp_avg_sq":
        room = max(room, 2 * least)  # a square is off by twice as much
    far = ROOM * _weighted_median([(scale[name], needs[name].numel) for name in many])
    most = room * max(share for name, share in scale.items() if name in many and share <= far)
    most = max(most, FLOOR, stored)
    bounds_of = {
        name: _bound(
            need, room * scale[name] * max(1.0, ROOM_OF_OUTLIERS * moved.get((kind, name), 0)), most
        )
        for name, need in needs.items()
    }
    most = max([most, *(bound for bound in bounds_of.values() if bound <= ROOM * FLOOR)])
    tolerance = _norm(kind, most)
    named: dict[str, float] = defaultdict(float)
    for name, bound in bounds_of.items():
        if bound > most:
            named[_pattern(name)] = max(named[_pattern(name)], bound)
    largest = MOST_OF_AN_UPDATE if weight else LARGEST_BOUND
    return None if tolerance is None else tolerance | _named_criteria(kind, named, largest)


def _bound(need: Need, usual: float, most: float) -> float:
    """Return the bound for one tensor, from its own error and the usual error of its kind."""
    if need.numel == 1:
        return max(ROOM_OF_NUMBERS * need.rel, CANCELLED * usual)
    return ROOM_OF_OUTLIERS * need.rel if need.rel > max(usual, most) else usual


def _unit_stored(kind: str, runs: Sequence[ComparedRun]) -> float:
    """Return the machine epsilon of the dtype in which tensors of a kind are stored."""
    tallies = (
        t
        for run in runs
        for (tally_kind, _), t in run.judgement.spread.items()
        if tally_kind == kind
    )
    dtypes = {getattr(torch, name) for tally in tallies for pair in tally.dtypes for name in pair}
    return max((torch.finfo(dtype).eps for dtype in dtypes if dtype in FLOATS), default=0.0)


def _weighted_median(weighted: list[tuple[float, int]]) -> float:
    """Return the median of values, each of which counts as often as its weight says."""
    ordered = sorted(weighted)
    below = [*accumulate(weight for _, weight in ordered)]
    return next(v for (v, _), total in zip(ordered, below, strict=True) if 2 * total >= below[-1])


def _norm(key: str, rel: float, largest: float = LARGEST_BOUND) -> dict[str, Criterion] | None:
    bound = rounded_up(rel)
    return {key: Norm(bound)} if bound < largest else None


def _named_criteria(kind: str, named: Mapping[str, float], largest: float) -> dict[str, Criterion]:
    """Return tolerances by tensor name; ones too loose to prove anything become `unchecked`."""
    tolerances: dict[str, Criterion] = {}
    for pattern, bound in named.items():
        key = f"{kind}:{pattern}"
        tolerances |= _norm(key, bound, largest) or {key: LEFT_OUT}
    return tolerances


def _pattern(name: str) -> str:
    """Return a tensor's name as a pattern, with a wildcard in place of each layer number."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)


def _left_out_everywhere(tolerances: dict[str, Criterion]) -> dict[str, Criterion]:
    """Set a weight to `unchecked` in all kinds, if it is `unchecked` in at least 4 of them."""
    kinds: dict[str, list[str]] = defaultdict(list)
    for key, criterion in tolerances.items():
        kind, _, pattern = key.partition(":")
        if criterion.left_out:
            kinds[pattern].append(kind)
    everywhere = {
        pattern for pattern, pattern_kinds in kinds.items() if len(pattern_kinds) >= EVERYWHERE
    }
    remaining = {
        key: criterion
        for key, criterion in tolerances.items()
        if key.partition(":")[2] not in everywhere
    }
    return remaining | {f"{DEFAULT}:{pattern}": LEFT_OUT for pattern in sorted(everywhere)}
