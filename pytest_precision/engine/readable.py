"""Find the plain tensors that hold a tensor's bytes, or say why there are none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from pytest_precision._torch.distributed import is_dtensor
from pytest_precision.errors import expected_but_got
from pytest_precision.matrix.tensor_key import inner_kind

WITHOUT_ZEROS = {
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
}
"""Layouts of tensors that keep no zeros, such as gradients of an embedding with `sparse=True`."""


class Stored(NamedTuple):
    """One of the plain tensors that a tensor subclass consists of, with its label in the trace.

    Attributes:
        kind: kind of the observed tensor, followed by the part's name unless it is the value.
        tensor: the part.
        local: whether every rank has a part of its own, which is no piece of a logical tensor.
    """

    kind: str
    tensor: Tensor
    local: bool = False


def stored(kind: str, tensor: Tensor) -> Iterator[Stored]:
    """Yield the plain tensors that a tensor consists of, a subclass's dequantized value first.

    Any other tensor is its own value, a sparse one with its zeros. A subclass without `dequantize`
    has inner tensors only.
    """
    local_tensor = tensor.to_local() if is_dtensor(tensor) else tensor
    if local_tensor.layout in WITHOUT_ZEROS:
        yield Stored(kind, with_zeros(local_tensor))
        return
    if local_tensor.is_quantized:
        yield Stored(kind, local_tensor.int_repr())
        yield from _quantization(kind, local_tensor)
        return
    if (
        is_dtensor(local_tensor)
        or not hasattr(local_tensor, "__tensor_flatten__")
        or local_tensor.is_nested
    ):
        yield Stored(kind, tensor)
        return
    if type(local_tensor).dequantize is not Tensor.dequantize:
        yield Stored(kind, _like(tensor, local_tensor.dequantize()))
    names, _ = local_tensor.__tensor_flatten__()
    for name in names:
        for part in stored(inner_kind(kind, name), getattr(local_tensor, name)):
            yield part._replace(local=part.local or local_tensor is not tensor)


def with_zeros(tensor: Tensor) -> Tensor:
    """Convert a sparse tensor to a dense one; return a dense tensor unchanged."""
    return tensor.to_dense() if tensor.layout in WITHOUT_ZEROS else tensor


def _quantization(kind: str, tensor: Tensor) -> Iterator[Stored]:
    """Yield the scale and the zero point of one of torch's quantized tensors."""
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        scale = torch.tensor(tensor.q_scale(), dtype=torch.float64)
        zero_point = torch.tensor(tensor.q_zero_point())
    else:
        scale, zero_point = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
    yield Stored(inner_kind(kind, "scale"), scale)
    yield Stored(inner_kind(kind, "zero_point"), zero_point)


def expect_readable(kind: str, name: str, tensor: Tensor) -> None:
    """Raise if a tensor's bytes cannot be read, with the reason.

    Raises:
        ValueError: for a tensor that has no bytes in one piece of memory.
    """
    problem = _problem(tensor)
    if problem:
        raise ValueError(
            expected_but_got(
                f"{kind} {name!r} to be dense, with memory of its own,",
                problem,
                "keep dense values, or say in `unobservable` why this kind is not compared",
            )
        )


def unreadable(tensor: Tensor) -> str:
    """Return why a tensor's bytes cannot be read; an empty text if they can.

    The parts of a subclass are looked at when they are shown.
    """
    if is_dtensor(tensor) and any(placement.is_partial() for placement in tensor.placements):
        return "a partial sum"
    local_tensor = tensor.to_local() if is_dtensor(tensor) else tensor
    if local_tensor.layout in WITHOUT_ZEROS or (
        hasattr(local_tensor, "__tensor_flatten__") and not local_tensor.is_nested
    ):
        return ""
    return _problem(local_tensor)


def expect_known(model: nn.Module) -> None:
    """Raise if a model has complex parameters or embeddings with sparse gradients.

    Raises:
        ValueError: for complex parameters and for sparse gradients.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_complex():
            raise ValueError(
                expected_but_got(
                    "real parameters",
                    f"{name} ({parameter.dtype}), whose imaginary part a cast to the cell's "
                    "storage dtype drops",
                    "make its `torch.view_as_real` the parameter",
                )
            )
    for name, module in model.named_modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.sparse:
            raise ValueError(
                expected_but_got(
                    "dense gradients",
                    f"{name} with sparse=True, whose gradients can neither be clipped nor reduced "
                    "with the others",
                    "leave `sparse` out",
                )
            )


def _like(tensor: Tensor, value: Tensor) -> Tensor:
    """Return `value` as a DTensor with `tensor`'s sharding, unchanged if `tensor` is plain."""
    if not is_dtensor(tensor):
        return value
    return type(tensor).from_local(
        value,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def _problem(tensor: Any) -> str:
    if tensor.is_nested:
        return "a nested tensor"
    if tensor.layout is not torch.strided:
        return f"layout={tensor.layout}"
    if tensor.is_meta:
        return "device=meta"
    if tensor.numel() and not _has_memory(tensor):
        return f"a {type(tensor).__name__} without memory"
    return ""


def _has_memory(tensor: Tensor) -> bool:
    """Return whether a tensor has memory; a fake tensor of a compiler has none."""
    try:
        return bool(tensor.data_ptr())
    except RuntimeError:  # of a fake tensor, which a compiler keeps of what it has traced
        return False


def in_graph(tensor: Tensor) -> bool:
    """Return whether a tensor was computed by operations that autograd recorded."""
    try:
        return tensor.grad_fn is not None
    except RuntimeError:  # a view from before its base became such a result, says torch
        return True
