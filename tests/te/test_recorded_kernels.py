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

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "transformer-engine.md"

Distances = dict[str, dict[str, float]]

IN_ANOTHER_ORDER = 2.0**-20
"""Distance of fp32 results whose sums have another order, or whose products and sums the kernels
round once where the stand-in rounds each: a few units of 2**-24."""

WITHIN = {
    "gemm.*float32": 2.0**-12,  # fp8 products are added with 14 bits there
    "gemm.*bfloat16": 2.0**-10,  # rounded from what comes out
    "adam_param_remainder.*int16": 2.0**-13,  # the low half of a weight, of which the last bits
    "aux_loss_bwd.*bfloat16": 2.0**-15,  # one element of 320 is rounded to its other neighbour
    "(adam|sgd|cross_entropy|norm_fwd|topk|score|unpermute.*bwd|scaled_).*float32|rope|dsituglu": (
        IN_ANOTHER_ORDER
    ),
}
"""Pattern of a function and a dtype to the distance of its results; others have the same bits."""


ONE_UNIT = 2.0**-23
"""Distance of a norm whose sum in fp32 has one order or another with the vectors of the CPU. On
some its last bit is that of the H100, on others it is the next one."""


def as_on_any_cpu(found: Distances) -> Distances:
    """Return distances in which the last bit of a norm, which the CPU decides, does not count."""
    return {
        name: {
            place: 0.0 if "l2norm" in name and distance <= ONE_UNIT else distance
            for place, distance in places.items()
        }
        for name, places in found.items()
    }


def wrong(found: Distances) -> Distances:
    """Return the results of each function that are further away than they may be."""
    made: Distances = {}
    for name, places in found.items():
        for place, distance in places.items():
            known = (value for key, value in WITHIN.items() if re.search(key, f"{name} {place}"))
            if distance > next(known, 0.0):
                made.setdefault(name, {})[place] = distance
    return made


OnARank = Callable[[Callable[[], Distances]], Distances]


def test_the_stand_in_computes_what_an_h100_did(on_a_rank: OnARank) -> None:
    """Bit for bit, but for sums and for what is rounded once there; the page has the numbers."""
    found = as_on_any_cpu(on_a_rank(replayed_calls.distances))
    assert wrong(found) == {}
    results = [distance for places in found.values() for distance in places.values()]
    same = [name for name, places in found.items() if not any(places.values())]
    numbers = f"Of {len(found)} functions, {len(same)} have the same bits"
    numbers += f" in all calls but for signs of zeros, and so have {results.count(0):,} of"
    numbers += f" {len(results):,} results"
    assert numbers in " ".join(PAGE.read_text().split())


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
