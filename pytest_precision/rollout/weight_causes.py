"""Say why an engine's tensor is not the trainer's: stale, never delivered, cast twice, and so on.

Each cause is a hypothesis: a tensor that the engine would hold if it were true. One that is equal
to the last byte, where the tensor differs, is the cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.matrix.contract import dtype_name
from pytest_precision.parity.compare.tensors import same_bytes
from pytest_precision.rollout.adapters import Adapter
from pytest_precision.rollout.casts import SCALE
from pytest_precision.rollout.inference_weights import weight_digest

WEIGHT_NAME = "WEIGHT_NAME"
"""What stands for the name of the weight in the words of a cause."""

THROUGH = (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)
"""Dtypes that a weight may have gone through before the declared cast."""


EVIDENCE = 8
"""Differing elements from which a part of a tensor tells its cause: fewer may be so by chance."""


@dataclass(frozen=True)
class Source:
    """Where a tensor of the engine comes from, and what it was.

    Attributes:
        tensor: the trainer's, before the cast.
        cast: the declared cast, of any other tensor in its place.
        former: step to what the trainer held then, before the cast; or to a digest.
        adapters: of the weight, with whether each is active.
        merged: the weight with its adapters, where the engine should hold their factors beside it.
        others: makes the name of each other tensor, and what the engine should hold of it.
    """

    tensor: Tensor
    cast: Callable[[Tensor], Tensor]
    former: Mapping[int, Tensor | str] = field(default_factory=dict)
    adapters: tuple[tuple[Adapter, bool], ...] = ()
    merged: Tensor | None = None
    others: Callable[[], Iterator[tuple[str, Tensor]]] = lambda: iter(())


def cause(actual: Tensor | str, expected: Tensor, source: Source, ending: str = "") -> str:
    """Return in words why a tensor of the engine is not as expected; empty if nobody knows.

    Args:
        actual: the engine's tensor, or its digest.
        expected: what it should be.
        source: see there.
        ending: of the name, such as `_scale`.
    """
    region = differing_region(actual, expected)
    if region is not None and region.elements < EVIDENCE:
        region = None
    where = "" if region is None else region.words
    for words, hypothesis in hypotheses(source, ending):
        if equal(actual, hypothesis, region):
            return words.replace(WEIGHT_NAME, f"{where}{WEIGHT_NAME}")
    if isinstance(actual, Tensor):
        return _scaled_adapter(actual, source) or in_proportion(actual, expected)
    return ""


def hypotheses(source: Source, ending: str) -> Iterator[tuple[str, Tensor | str]]:
    """Yield each known cause, with the tensor that the engine would hold."""
    yield from _former(source, ending)
    yield from _adapted(source)
    yield from _cast(source)
    expected = source.cast(source.tensor)
    if source.tensor.ndim == 1 and source.tensor.is_floating_point():
        for offset in (1, -1):
            yield offset_words(offset), source.cast(source.tensor + offset)
    if expected.ndim >= 2:
        yield transposed_words(), expected.transpose(-1, -2)
    for name, other in source.others():
        # Norms that nobody has trained are all alike, so that one of them tells nothing.
        if bool((other != other.flatten()[:1]).any()):
            yield f"another tensor: {WEIGHT_NAME} holds {name}", other


def _former(source: Source, ending: str) -> Iterator[tuple[str, Tensor | str]]:
    for step, former in sorted(source.former.items(), reverse=True):
        tensor = former if isinstance(former, str) else source.cast(former)
        yield stale_words(step, scale=ending.startswith(SCALE)), tensor


def stale_words(step: int, where: str = "", *, scale: bool = False) -> str:
    """Return in words that a weight, or a part of it, is that of a former step."""
    noun = "scale" if scale else "weights"
    if step == 0:
        return f"never delivered: {where}{WEIGHT_NAME} holds the {noun} of before the first step"
    word = "another scale" if scale else "stale"
    return f"{word}: {where}{WEIGHT_NAME} holds the {noun} of step {step}"


def transposed_words(where: str = "") -> str:
    """Return in words that a weight, or a part of it, is transposed."""
    return f"transposed: {where}{WEIGHT_NAME} is in the other order"


MERGED_BESIDE = f"merged twice: {WEIGHT_NAME} has its adapters merged, and their factors beside it"
"""What is wrong with a weight to which an engine adds its adapters once more."""


def _adapted(source: Source) -> Iterator[tuple[str, Tensor]]:
    if source.merged is not None:
        yield MERGED_BESIDE, source.cast(source.merged)
        return
    for adapter, active in source.adapters:
        base, name = adapter.base, adapter.name
        if not active:
            words = f"wrong adapter: {WEIGHT_NAME} has the adapter {name} merged"
            yield words, source.cast(adapter.merged(adapter.delta()))
            continue
        words = f"never delivered: {WEIGHT_NAME} holds the base weight without the adapter {name}"
        yield words, source.cast(base)
        square = adapter.scaling * adapter.scaling
        words = f"another scale: {WEIGHT_NAME} has the scale of the adapter {name} applied twice"
        yield words, source.cast(adapter.merged(adapter.delta(square)))
        words = f"merged twice: {WEIGHT_NAME} has the adapter {name} two times"
        yield words, source.cast(adapter.merged(adapter.delta(), adapter.delta()))
        words = f"another scale: {WEIGHT_NAME} has the adapter {name} merged without its scale"
        yield words, source.cast(adapter.merged(adapter.delta(1.0)))
        for factor in (len(adapter.down) ** 0.5, len(adapter.down) ** -0.5):  # of rsLoRA
            scale = adapter.scaling * factor
            words = another_scale(adapter, scale)
            yield words, source.cast(adapter.merged(adapter.delta(scale)))
        if adapter.magnitude is not None:
            words = f"never delivered: {WEIGHT_NAME} lacks the magnitude of the adapter {name}"
            yield words, source.cast(adapter._replace(magnitude=None).merged(adapter.delta()))
        grid, delta = source.cast(base), adapter.delta()
        if grid.is_floating_point() and {grid.dtype} != {base.dtype, delta.dtype}:
            words = f"merged on the {dtype_name(grid.dtype)} grid: {WEIGHT_NAME} and the adapter"
            words = f"{words} {name} were cast before they were merged"
            yield words, grid + source.cast(delta).to(grid.dtype)


def _cast(source: Source) -> Iterator[tuple[str, Tensor]]:
    if not source.tensor.is_floating_point():
        return
    final = source.cast(source.tensor)
    for dtype in THROUGH:
        narrow = source.tensor.to(dtype).to(source.tensor.dtype)
        words = f"cast twice: {WEIGHT_NAME} went through {dtype_name(dtype)}"
        yield words, source.cast(narrow)
        largest = source.tensor.abs().max()
        if dtype.itemsize == 1 and largest > 0:
            scale = (largest.float() / torch.finfo(dtype).max).clamp(min=1e-12)
            bytes_ = (source.tensor.float() / scale).to(dtype)
            words = (
                f"quantized: {WEIGHT_NAME} went through {dtype_name(dtype)} with a scale of its own"
            )
            yield words, source.cast((bytes_.float() * scale).to(source.tensor.dtype))
    if final.dtype is not source.tensor.dtype:
        yield f"never cast: {WEIGHT_NAME} is {dtype_name(source.tensor.dtype)}", source.tensor


class DifferingRegion(NamedTuple):
    """The rows and columns of a tensor that differ: its first and its last dimension.

    Attributes:
        elements: how many differ.
        rows: the first and the end.
        columns: the first and the end; all of them unless at most half differ, as of a shard.
        words: where it is, as far as it is not the whole tensor.
    """

    elements: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    words: str

    def of(self, tensor: Tensor) -> Tensor:
        """Return the region of a tensor."""
        return tensor[slice(*self.rows)][..., slice(*self.columns)].contiguous()


def differing_region(actual: Tensor | str, expected: Tensor) -> DifferingRegion | None:
    """Return where a tensor differs; None if nobody can say."""
    alike = isinstance(actual, Tensor) and actual.shape == expected.shape and actual.ndim >= 2
    if not alike or not isinstance(actual, Tensor) or actual.dtype is not expected.dtype:
        return None
    differ = (bits_of(actual) != bits_of(expected)).any(-1)
    rows = _extent(differ.reshape(len(differ), -1).any(-1))
    columns = _extent(differ.reshape(-1, differ.shape[-1]).any(0))
    if 2 * (columns[1] - columns[0]) > differ.shape[-1]:
        columns = (0, differ.shape[-1])
    parts = [
        numbered(noun, *extent)
        for noun, extent, size in (
            ("row", rows, differ.shape[0]),
            ("column", columns, differ.shape[-1]),
        )
        if extent != (0, size)
    ]
    where = "".join(f"{words} of " for words in parts)
    return DifferingRegion(int(differ.sum()), rows, columns, where)


def _extent(differ: Tensor) -> tuple[int, int]:
    places = differ.nonzero().flatten()
    return int(places[0]), int(places[-1]) + 1


def numbered(noun: str, first: int, end: int) -> str:
    """Return numbers from the first to before the end in words, such as `rows 2 to 3`."""
    return f"{noun} {first}" if end - first == 1 else f"{noun}s {first} to {end - 1}"


def bits_of(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor, as many for each element as its dtype has."""
    return tensor.contiguous().unsqueeze(-1).view(torch.uint8)


def equal(actual: Tensor | str, hypothesis: Tensor | str, region: DifferingRegion | None) -> bool:
    """Return whether an engine's tensor is that of a hypothesis, where it differs."""
    if isinstance(actual, str) or isinstance(hypothesis, str):
        ours, theirs = (
            side if isinstance(side, str) else weight_digest(side) for side in (actual, hypothesis)
        )
        return ours == theirs
    if actual.shape != hypothesis.shape:
        return False
    hypothesis = hypothesis.to(actual.device)
    if region is None:
        return same_bytes(actual.contiguous(), hypothesis.contiguous())
    return same_bytes(region.of(actual), region.of(hypothesis))


def _scaled_adapter(actual: Tensor, source: Source) -> str:
    """Return that a tensor has an adapter with a scale of its own, if it has."""
    for adapter, active in source.adapters:
        base, delta = source.cast(adapter.base), adapter.delta()
        if not active or not actual.is_floating_point() or actual.shape != base.shape:
            continue
        added, whole = actual.double() - base.double(), delta.double()
        factor = float((added * whole).sum() / whole.square().sum().clamp(min=1e-300))
        off = (added - factor * whole).abs().max()
        rounding = 4 * torch.finfo(actual.dtype).eps * actual.double().abs().max()
        if off <= rounding < (factor * whole).abs().max():
            return another_scale(adapter, factor * adapter.scaling)
    return ""


def another_scale(adapter: Adapter, scale: float) -> str:
    """Return in words that an adapter is merged with another scale than its own."""
    scales = f"{scale:.6g}, not {adapter.scaling:.6g}"
    return f"another scale: {WEIGHT_NAME} has the adapter {adapter.name} times {scales}"


def offset_words(offset: float) -> str:
    """Return in words that one number is added to a weight, as by norms that add 1 themselves."""
    return f"another offset: {WEIGHT_NAME} is that of the reference plus {offset:.6g}"


def in_proportion(actual: Tensor, expected: Tensor) -> str:
    """Return that a tensor is a multiple of the expected one, or off by one number, if it is."""
    floating = actual.is_floating_point() and expected.is_floating_point()
    if not floating or actual.shape != expected.shape or not expected.numel():
        return ""
    ours, theirs = actual.double(), expected.double()
    place = int(theirs.abs().argmax())
    largest = float(theirs.flatten()[place])
    if not largest:
        return ""
    if not bool(ours.any()):
        return f"never delivered: {WEIGHT_NAME} is 0 everywhere"
    factor = float(ours.flatten()[place]) / largest
    offset = float(ours.flatten()[place]) - largest
    eps = torch.finfo(actual.dtype).eps
    rounded = 4 * eps * torch.maximum(ours.abs(), theirs.abs())
    alike = bool(((ours - theirs - offset).abs() <= rounded).all())
    if alike and actual.numel() > 1 and abs(offset) > eps * abs(largest):
        return offset_words(offset)
    off = (ours - factor * theirs).abs() > eps * (factor * theirs).abs()
    if bool(off.any()) or abs(factor - 1) <= 2 * eps:
        return ""
    if actual.numel() == 1:
        return f"another scale: {WEIGHT_NAME} is {float(ours):.6g}, not {float(theirs):.6g}"
    return f"another scale: {WEIGHT_NAME} is {factor:.6g} times that of the reference"
