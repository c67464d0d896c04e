"""QuantizedParameter: a parameter whose only storage is quantized bytes and their scales."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from pytest_precision._torch.dispatch import tensor_without_memory
from pytest_precision.engine.read_only import ReadOnly, writable
from pytest_precision.errors import expected_but_got
from pytest_precision.formats.format import Format
from pytest_precision.formats.quantized import Operand, QuantizedTensor
from pytest_precision.matrix.tensor_key import OperandPart, TensorKey
from pytest_precision.modules.padding import quantize_padded

NOMINAL = torch.bfloat16
"""The dtype that a quantized parameter shows, and that values are rounded to before quantizing."""

_aten = torch.ops.aten


_KINDS = {"data": "quantized", "scale": "scale", "amax": "amax"}
"""The kind of observation that each buffer of a quantized matrix is."""


class _Storage:
    """The quantized bytes and scales that a parameter shares with all tensors detached from it."""

    def __init__(self, value: Tensor, formats: Sequence[Format]) -> None:
        self.formats = tuple(formats)
        self.grouped = value.dim() == 3
        self.high_precision_init: Tensor | None = value
        self.members = list(self.quantize(value))
        self.tensors: dict[str, Tensor] = {}
        for key, parts in _by_key(self.members).items():
            self.rebase(key, torch.stack(parts) if self.grouped else parts[0])

    def quantize(self, value: Tensor) -> Iterator[QuantizedTensor]:
        """Quantize each matrix of a value (one, or several stacked) by its own format."""
        matrices = value.unbind() if self.grouped else (value,)
        for matrix, format in zip(matrices, self.formats, strict=True):
            yield quantize_padded(format, matrix)

    def rebase(self, key: str, tensor: Tensor) -> None:
        """Replace a stored buffer, such as the one named "rowwise.data", by another tensor."""
        self.tensors[key] = tensor
        side, field = OperandPart.of(key)
        for place, part in enumerate(tensor.unbind() if self.grouped else (tensor,)):
            member = self.members[place]
            operand = replace(member.operands[side], **{field: part})  # type: ignore[arg-type]
            self.members[place] = replace(member, operands={**member.operands, side: operand})


class QuantizedParameter(ReadOnly):
    """A weight that is stored only in quantized form, like Transformer Engine's fp8 parameters.

    It looks like a bf16 tensor to autograd and optimizers, has a gradient of that dtype and shape,
    and is what `model.parameters()` yields. Operations other than those of `modules` compute on its
    dequantized values; `copy_` into it quantizes.
    """

    _storage: _Storage

    @staticmethod
    def __new__(cls, storage: _Storage, shape: torch.Size, device: torch.device) -> Any:
        """Make a tensor with shape, dtype and device but no memory of its own."""
        return tensor_without_memory(cls, shape, NOMINAL, device)

    def __init__(self, storage: _Storage, shape: torch.Size, device: torch.device) -> None:
        self._storage = storage

    @classmethod
    def of(cls, value: Tensor, formats: Format | Sequence[Format]) -> QuantizedParameter:
        """Make a trainable parameter of `value`, which is rounded to bf16 and then quantized.

        Args:
            value: a matrix [rows, columns], or several [matrices, rows, columns], each of which is
                quantized by itself.
            formats: one format per matrix; for a single matrix, the format itself.

        Raises:
            ValueError: `value` has neither two nor three dimensions, or the number of formats is
                not the number of matrices.
        """
        if value.dim() not in (2, 3):
            raise ValueError(
                expected_but_got(
                    "a weight of 2 or 3 dimensions",
                    f"shape={tuple(value.shape)} (Size)",
                    "keep vectors in high precision",
                )
            )
        each: list[Any] = list(formats) if isinstance(formats, (list, tuple)) else [formats]
        matrices = value.shape[0] if value.dim() == 3 else 1
        if len(each) != matrices:
            raise ValueError(
                expected_but_got(
                    f"a format for each of {matrices} matrices",
                    f"{len(each)} formats",
                    "make one per matrix, since a format may have a state",
                )
            )
        for format in each:
            format.leave_updates_to_owner()
        rounded_tensor = value.detach().to(NOMINAL, copy=True)
        parameter = cls(_Storage(rounded_tensor, each), value.shape, value.device)
        return cast(QuantizedParameter, nn.Parameter(parameter))

    @property
    def data(self) -> Tensor:
        """The same parameter without a gradient; it shares the quantized bytes.

        Raises:
            TypeError: another tensor is assigned to `data`, as `nn.Module.float` does.
        """
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        # `nn.Module.to` assigns the parameter itself if it has that device and dtype already.
        if not (isinstance(value, QuantizedParameter) and value._storage is self._storage):
            raise TypeError(
                expected_but_got(
                    "quantized data to be changed by copy_ or requantize_",
                    f"data of {value.dtype} on {value.device} ({type(value).__name__})",
                    "move and cast a model before it is quantized",
                )
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> QuantizedParameter:
        copied = type(self)(deepcopy(self._storage, memo), self.shape, self.device)
        copied.requires_grad_(self.requires_grad)
        copied.grad = deepcopy(self.grad, memo)
        copied.__dict__.update(deepcopy(self.__dict__, memo))
        return copied

    @property
    def quantized(self) -> QuantizedTensor:
        """The rowwise and columnwise operands of a parameter that is one matrix.

        Raises:
            ValueError: the parameter has three dimensions; use `members`.
        """
        if self._storage.grouped:
            raise ValueError(
                expected_but_got(
                    "a parameter that is one matrix",
                    f"one of {len(self.members)} matrices (QuantizedParameter)",
                    "use one of .members",
                )
            )
        return self.members[0]

    @property
    def members(self) -> Sequence[QuantizedTensor]:
        """The rowwise and columnwise operands of each matrix, as views of the stored buffers."""
        return self._storage.members

    @property
    def stored(self) -> dict[str, Tensor]:
        """The parameter's buffers by name, such as "rowwise.data" and "columnwise.scale".

        If the parameter has three dimensions, they are stacked over the matrices.
        """
        return dict(self._storage.tensors)

    def quantized_state(self, name: str) -> Iterator[tuple[str, str, Tensor]]:
        """Yield bytes (kind `quantized`), scales and amaxes, named such as `up.weight.rowwise`.

        The experts of a single grouped weight have the names of separate ones, such as
        `up.weight3.rowwise`.
        """
        for place, member in enumerate(self.members):
            number = "" if self.dim() == 2 else str(place)
            for key, tensor in tensors_of(member):
                side, field = OperandPart.of(key)
                kind = _KINDS[field]
                yield kind, TensorKey(f"{name}{number}", side).name(kind), tensor

    @property
    def formats(self) -> tuple[Format, ...]:
        """The number format of each matrix of the parameter."""
        return self._storage.formats

    @property
    def high_precision_init(self) -> Tensor | None:
        """The bf16 value before quantization, to initialise masters; None once it was cleared."""
        return self._storage.high_precision_init

    def clear_high_precision_init(self) -> None:
        """Free the bf16 value that `high_precision_init` returns."""
        self._storage.high_precision_init = None

    @torch.no_grad()
    def requantize_(self, high_precision: Tensor) -> QuantizedParameter:
        """Overwrite the parameter with a value that is rounded to bf16 and quantized.

        Raises:
            ValueError: the value has another shape.
        """
        if high_precision.shape != self.shape:
            raise ValueError(
                expected_but_got(
                    f"a value of shape {tuple(self.shape)}",
                    f"high_precision.shape={tuple(high_precision.shape)} (Size)",
                    "give the whole weight",
                )
            )
        quantized = list(self._storage.quantize(high_precision.detach().to(NOMINAL)))
        for key, parts in _by_key(quantized).items():
            target = self._storage.tensors[key]
            for place, part in enumerate(parts):
                (target[place] if self._storage.grouped else target).copy_(part)
        for format in self.formats:
            format.update()
        return self

    @torch.no_grad()
    def rebase_(self, key: str, tensor: Tensor) -> QuantizedParameter:
        """Move one of the parameter's `stored` tensors into a buffer that the caller passes.

        Args:
            key: key of the tensor in `stored`.
            tensor: the buffer, of the same shape and dtype; the members become views of it.

        Raises:
            ValueError: the buffer has another shape or dtype.
        """
        stored_tensor = self._storage.tensors[key]
        if tensor.shape != stored_tensor.shape or tensor.dtype != stored_tensor.dtype:
            raise ValueError(
                expected_but_got(
                    f"{key} to be {stored_tensor.dtype} {tuple(stored_tensor.shape)}",
                    f"{tensor.dtype} {tuple(tensor.shape)} (Tensor)",
                    "give a buffer of that dtype and shape",
                )
            )
        self._storage.rebase(key, tensor.copy_(stored_tensor))
        return self

    def dequantize(self, dtype: torch.dtype = NOMINAL) -> Tensor:
        """Return the values of the rowwise operands in `dtype`, rounded once from fp32."""
        rows, columns = self.shape[-2:]
        matrices = [member.dequantize(dtype)[:rows, :columns] for member in self.members]
        # The result never shares memory with the parameter: callers may write to it.
        return torch.stack(matrices) if self._storage.grouped else matrices[0].contiguous()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"QuantizedParameter({self.members[0].format}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if func is _aten.detach.default:
            return cls(args[0]._storage, args[0].shape, args[0].device)
        if func is _aten.copy_.default and isinstance(args[0], cls):
            return args[0].requantize_(writable(args[1]))
        return super().__torch_dispatch__(func, types, args, kwargs)


def quantized_parameters(module: nn.Module) -> Iterator[tuple[str, QuantizedParameter]]:
    """Yield name and parameter for the quantized parameters of a module, without submodules."""
    for name, parameter in module.named_parameters(recurse=False):
        if isinstance(parameter, QuantizedParameter):
            yield name, cast(QuantizedParameter, parameter)


_FIELDS: dict[str, Callable[[Operand], Tensor | None]] = {
    "data": lambda operand: operand.data,
    "scale": lambda operand: operand.scale,
    "amax": lambda operand: operand.amax,
}


def tensors_of(quantized: QuantizedTensor) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of a quantized matrix's buffers, with names such as "rowwise.data"."""
    for side, operand in quantized.operands.items():
        for field, read in _FIELDS.items():
            tensor = read(operand)
            if tensor is not None:
                yield OperandPart(side, field).part, tensor


def _by_key(members: Sequence[QuantizedTensor]) -> dict[str, list[Tensor]]:
    collected: dict[str, list[Tensor]] = {}
    for member in members:
        for key, tensor in tensors_of(member):
            collected.setdefault(key, []).append(tensor)
    return collected
