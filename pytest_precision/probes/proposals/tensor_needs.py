"""Measure how far each tensor was off in comparisons of two sides, to propose tolerances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from pytest_precision.engine.kinds import STARTING_KINDS
from pytest_precision.parity.compare.bit_patterns import FLOATS
from pytest_precision.parity.compare.divergences import Judgement
from pytest_precision.parity.compare.logical_tensor import assemble
from pytest_precision.parity.compare.noise import weights_of
from pytest_precision.probes.proposals.required_tolerance import measured_pairs
from pytest_precision.trace.reader import Trace

OUTLYING = 4
"""How many times as far off as the median of its kind a tensor has a name of its own."""

RESULTS = (
    "used_param",
    "loss",
    "grad",
    "reduced_grad",
    "grad_norm",
    "final_grad",
    "exp_avg",
    "exp_avg_sq",
    "master",
    "param",
)
"""Kinds that differ in some step, on some data, if any of them does: training is a loop."""


class Need(NamedTuple):
    """The largest relative error `rel` of one tensor in several comparisons, and its element count.

    Attributes:
        rel: largest relative L2 error.
        numel: number of elements.
    """

    rel: float = 0.0
    numel: int = 0

    def __or__(self, other: Need) -> Need:
        return Need(max(self.rel, other.rel), max(self.numel, other.numel))


class ComparedRun(NamedTuple):
    """A comparison of candidate and reference, with the reference's recorded tensors."""

    judgement: Judgement
    reference: Trace


def needs_of(runs: Sequence[ComparedRun]) -> dict[str, dict[str, Need]]:
    """Return each tensor's largest relative error in all comparisons, and its size, by kind."""
    needs: dict[str, dict[str, Need]] = {}
    for judgement, reference in runs:
        for (kind, _), tally in judgement.spread.items():
            if kind in RESULTS:
                needs.setdefault(kind, {})
            for name, statistics in measured_pairs(tally):
                of_kind = needs.setdefault(kind, {})
                of_kind[name] = of_kind.get(name, Need()) | Need(
                    statistics.rel_l2, statistics.numel
                )
        compared = reference.moments
        for entry in (entry for moment in compared for entry in reference.entries(moment, needs)):
            of_kind = needs[entry.kind]
            size = Need(numel=math.prod(entry.shape))
            of_kind[entry.name] = of_kind.get(entry.name, Need()) | size
    return needs | _weights_alike(needs)


def _weights_alike(needs: Mapping[str, Mapping[str, Need]]) -> dict[str, dict[str, Need]]:
    """Give all forms of a weight (master, stored, used in forward) the largest of their errors."""
    kinds = [kind for kind in needs if kind in STARTING_KINDS]
    return {
        kind: {
            name: Need(max(needs[other].get(name, need).rel for other in kinds), need.numel)
            for name, need in needs[kind].items()
        }
        for kind in kinds
    }


def shares_of(runs: Sequence[ComparedRun]) -> dict[tuple[str, str], float]:
    """Return how far each weight moved in training, relative to its norm, by kind and name."""
    shares: dict[tuple[str, str], float] = {}
    for _, reference in runs:
        starts: dict[tuple[str, str], torch.Tensor] = {}
        for key, pieces in weights_of(reference):
            weight = assemble(reference, pieces).tensor
            if weight is not None and weight.dtype in FLOATS:
                values = weight.double()
                way = float((values - starts.setdefault(key, values)).norm())
                share = way / (float(values.norm()) or 1.0)
                shares[key] = max(shares.get(key, 0.0), share)
    return shares


def moved_by_noise(
    noise: Mapping[str, Mapping[str, Need]], shares: Mapping[tuple[str, str], float]
) -> dict[tuple[str, str], float]:
    """Map tensors that rounding moves more than is usual in their kind to how many times as much.

    A few roundings may not have met what depends on them most, such as a gradient that is zero but
    for rounding: AdamW makes a whole update of it.
    """
    factors: dict[tuple[str, str], float] = {}
    for kind, needs in noise.items():
        errors = {
            name: need.rel / (shares.get((kind, name)) or 1.0)
            for name, need in needs.items()
            if need.rel and need.numel > 1
        }
        usual = usual_error([*errors.values()])
        factors |= {(kind, name): error / usual for name, error in errors.items() if error > usual}
    return factors


def usual_error(errors: list[float]) -> float:
    """Return the largest of the errors without outliers: those above 4 times the median."""
    if not errors:
        return 0.0
    median = sorted(errors)[len(errors) // 2]
    return max(error for error in errors if error <= OUTLYING * median)
