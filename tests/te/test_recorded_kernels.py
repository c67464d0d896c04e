"""The stand-in against kernels of a GPU: calls that were recorded on an H100, made again here."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import replayed_calls
import te_wheel
import torch

pytestmark = [pytest.mark.slow, te_wheel.NEEDED]

Distances = dict[str, dict[str, float]]

IN_ANOTHER_ORDER = 2.0**-20
"""Distance of fp32 results whose sums have another order, or whose products and sums the kernels
round once where the stand-in rounds each: a few units of 2**-24."""

WITHIN = {
    # fp8 products are added with 14 bits there, and bf16 results are rounded from what comes out.
    "gemm": 2.0**-9,
    "adam_param_remainder": 2.0**-13,  # the low half of a weight, whose last bits differ as below
    "aux_loss_bwd": 2.0**-15,  # one element of bf16 in hundreds is rounded to its other neighbour
    "adam|sgd|rope|cross_entropy|norm_fwd|topk|score|unpermute.*bwd|scaled_(clamped_)?ds|dsitu": (
        IN_ANOTHER_ORDER
    ),
}
"""Pattern of a name to the distance that its results may have; those of all others have none."""


def wrong(found: Distances) -> Distances:
    """Return the results of each function that are further away than they may be."""
    made = {}
    for name, places in found.items():
        bound = next((value for known, value in WITHIN.items() if re.search(known, name)), 0.0)
        far = {place: distance for place, distance in places.items() if distance > bound}
        made |= {name: far} if far else {}
    return made


OnARank = Callable[[Callable[[], Distances]], Distances]


def test_the_stand_in_computes_what_an_h100_did(on_a_rank: OnARank) -> None:
    """Bit for bit, but for sums and for what is rounded once there; 80 functions in all forms."""
    found = on_a_rank(replayed_calls.distances)
    assert len(found) >= 80
    assert wrong(found) == {}


def test_a_function_that_rounds_before_it_quantizes_is_seen(on_a_rank: OnARank) -> None:
    """As the stand-in did, until what the kernels make of it was seen."""
    assert {"gelu", "swiglu"} <= wrong(on_a_rank(replayed_calls.distances_if_rounded_first)).keys()


def test_calls_are_recorded_and_made_again(on_a_rank: OnARank, tmp_path: Path) -> None:
    """As on a GPU, where `ci/gpu` records them: of the stand-in itself, all bits are the same."""
    found = on_a_rank(partial(replayed_calls.distances_of_own_calls, tmp_path / "calls.pt.xz"))
    assert {"generic_gemm", "quantize", "multi_tensor_adam", "multi_tensor_adam_fp8"} <= {*found}
    assert not any(max(places.values()) for places in found.values())


def test_what_a_distance_is() -> None:
    """Signs of zeros and bits of NaN are none; another value, dtype or shape is one."""
    distance, nan, inf = replayed_calls.distance, torch.nan, torch.inf
    given = torch.tensor([3.0, 4.0, 0.0, nan, inf])
    assert distance(given, torch.tensor([3.0, 4.0, -0.0, nan, inf])) == 0
    assert distance(given, torch.tensor([3.0, 4.5, 0.0, nan, inf])) == 0.1
    assert distance(given, torch.tensor([3.0, 4.0, 0.0, 0.0, inf])) == replayed_calls.OTHER
    assert distance(given, torch.tensor([3.0, 4.0, 0.0, nan, -inf])) == replayed_calls.OTHER
    assert distance(given, given[:-1]) == distance(given, given.double()) == replayed_calls.OTHER
