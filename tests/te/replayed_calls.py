"""What the stand-in makes of recorded calls, against what the kernels of a GPU made of them."""

from __future__ import annotations

import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import kernel_scenes
import torch
from kernel_calls import FILE, Calls, Replay, recorded
from torch import Tensor

from pytest_precision import layouts
from pytest_precision.te import cuda, stand_in

OTHER = math.inf
"""The distance of what differs in its kind, dtype or shape."""


@layouts.uses_transformer_engine
def distances(file: Path = FILE) -> dict[str, dict[str, float]]:
    """Return for each function how far its results are from the kernel's, by place and dtype.

    A result is what a call returns, or has written to. What it should leave alone is one if it is
    not left alone, and so is a value that is no tensor if it is another. The distance of two
    tensors is the norm of their difference by that of the kernel's; that of equal bits, but for the
    sign of a zero, is 0.
    """
    cuda.enter((9, 0))
    try:
        replay = Replay(file)
        found: dict[str, dict[str, float]] = defaultdict(dict)
        for number, call in enumerate(replay.calls):
            for place, distance in _of_call(replay, call):
                found[call["name"]][f"{place} of call {number}"] = distance
        return dict(found)
    finally:
        cuda.enter()


@layouts.uses_transformer_engine
def distances_of_own_calls(file: Path) -> dict[str, dict[str, float]]:
    """Record layers and an optimizer over the stand-in, and return how far it is from itself."""
    cuda.enter((9, 0))
    with recorded(sorted(stand_in.functions())) as calls:
        for part in (kernel_scenes.layers, kernel_scenes.optimizers):
            for _, scene in islice(part(), 4):
                scene()
    calls.save(file)
    return distances(file)


@layouts.uses_transformer_engine
def distances_if_rounded_first() -> dict[str, dict[str, float]]:
    """Return them where activations are rounded before they are quantized, whatever the recipe."""
    from pytest_precision.te import activations, quantize

    activations.quantize = lambda tensor, by, exact: quantize.quantize(tensor, by)
    try:
        return distances()
    finally:
        activations.quantize = quantize.quantize


def _of_call(replay: Replay, call: dict[str, Any]) -> Iterator[tuple[str, float]]:
    args, kwargs = replay.arguments(call)
    again = Calls()
    made = _function(call["name"])(*args, **kwargs)
    expected = _Side(replay.tensors, _defined(call, call["left"], call["made"], replay.tensors))
    left, made = again.plain([args, kwargs]), again.plain(made)
    ours = _Side(again.tensors, _defined(call, left, made, again.tensors))
    before, after = (dict(_numbers("", {"left": call[when]})) for when in ("given", "left"))
    for place, distance in _compared("", expected, ours):
        own = place.partition(" of ")[0]
        if distance or own not in after or after[own] != before.get(own):
            yield place, distance


def _numbers(place: str, value: Any) -> Iterator[tuple[str, int]]:
    """Yield the places of tensors in plain values, and which tensors they are."""
    if isinstance(value, dict) and "tensor" in value:
        yield place, value["tensor"]
    elif isinstance(value, (dict, list)):
        keyed = value.items() if isinstance(value, dict) else enumerate(value)
        for key, one in keyed:
            yield from _numbers(
                f"{place}[{key}]" if isinstance(key, int) else f"{place}.{key}", one
            )


def _function(name: str) -> Callable[..., Any]:
    area, _, own = name.rpartition(".")
    module = f"transformer_engine.pytorch.triton.{area}" if area else "transformer_engine_torch"
    return getattr(sys.modules.get(module) or import_module(module), own)


def _defined(call: dict[str, Any], left: Any, made: Any, tensors: list[Tensor]) -> Any:
    """Return what a call leaves and returns, without what the kernels leave unset."""
    name = call["name"]
    if name == "moe_permute_fwd":  # memory that only a GPU needs
        made = made[:2]
    if name == "moe_unpermute_bwd" and not tensors[left[0][4]["tensor"]].numel():
        made = made[:1]  # there are no weights to have gradients
    if name == "permutation.make_row_id_map":
        rows = tensors[made["tensor"]]
        experts, taken = rows.shape[1] // 2, rows[:, -1:]
        place = torch.arange(rows.shape[1] - 1) % experts
        tensors[made["tensor"]] = torch.cat([rows[:, :-1].where(place < taken, 0), taken], 1)
    return {"left": left, "made": made}


class _Side:
    """One side of a comparison: plain values, and the tensors that they name."""

    def __init__(self, tensors: list[Tensor], value: Any) -> None:
        self.tensors, self.value = tensors, value

    def of(self, value: Any) -> _Side:
        return _Side(self.tensors, value)

    @property
    def tensor(self) -> Tensor:
        return self.tensors[self.value["tensor"]]


def _compared(place: str, expected: _Side, ours: _Side) -> Iterator[tuple[str, float]]:
    a, b = expected.value, ours.value
    if isinstance(a, dict) and isinstance(b, dict) and a.keys() == b.keys():
        if "tensor" in a:
            found = distance(expected.tensor, ours.tensor)
            if found or expected.tensor.numel():
                yield f"{place} of {expected.tensor.dtype}", found
            return
        if a.get("storage") == "Float8BlockwiseQTensorStorage":
            expected, ours = _without_padding(expected), _without_padding(ours)
            a, b = expected.value, ours.value
        for key in a:
            yield from _compared(f"{place}.{key}", expected.of(a[key]), ours.of(b[key]))
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for key, pair in enumerate(zip(a, b, strict=True)):
            yield from _compared(f"{place}[{key}]", expected.of(pair[0]), ours.of(pair[1]))
    elif a != b and not (a != a and b != b):
        yield f"{place} ({a} and not {b})", OTHER


def _without_padding(side: _Side) -> _Side:
    """Cut off scales beyond the last square block, which the kernels leave unset."""
    given = dict(side.value["given"]["dict"])
    tensors = [*side.tensors]
    for order in ("rowwise", "columnwise"):
        data, scale = given[f"{order}_data"], given[f"{order}_scale_inv"]
        if given["is_2D_scaled"] and data is not None:
            blocks = -(-side.tensors[data["tensor"]].shape[-1] // 128)
            given[f"{order}_scale_inv"] = {**scale, "tensor": len(tensors)}
            tensors.append(side.tensors[scale["tensor"]][:, :blocks])
    return _Side(tensors, {**side.value, "given": {"dict": given}})


def distance(expected: Tensor, ours: Tensor) -> float:
    """Return the norm of the difference by that of the expected values; NaN is NaN."""
    if expected.dtype != ours.dtype or expected.shape != ours.shape:
        return OTHER
    a, b = expected.double(), ours.double()
    other = (a != b) & ~(a.isnan() & b.isnan())
    if not other.any():
        return 0.0
    difference = (a - b)[other].norm()
    return float(difference / a[a.isfinite()].norm()) if difference.isfinite() else OTHER
