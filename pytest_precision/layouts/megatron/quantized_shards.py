"""Quantization of sharded master weights: ranks reduce amaxes, cast, and gather the bytes.

Source: Transformer Engine's `quantize_master_weights` and `post_all_gather_processing`. Masters are
cast to bf16, the amaxes of all parameters are reduced at once, and each rank casts its own elements
with the resulting scales. Transposed copies are made from the gathered bytes; MXFP8, whose two
operands differ, has both gathered. Cells of the native backend cast here by emulation too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional as F

from pytest_precision.engine.observation import Span
from pytest_precision.formats.format import Reducible
from pytest_precision.formats.quantized import Operand
from pytest_precision.formats.scaling import ReduceAmax
from pytest_precision.layouts.megatron.buffers import Buffer, BufferSlot
from pytest_precision.layouts.megatron.packing import held_part
from pytest_precision.layouts.megatron.shards import Shard
from pytest_precision.matrix.tensor_key import OperandPart
from pytest_precision.modules.padding import padded_shape
from pytest_precision.modules.parameter import NOMINAL, QuantizedParameter, tensors_of


@dataclass(frozen=True)
class ShardedMatrix:
    """One matrix of a quantized parameter, of which this rank has a shard.

    Attributes:
        format: format that it is quantized in.
        shape: shape without the padding of the format.
        padded: shape with the padding.
        place: its elements in the buffer.
        operands: how it is stored.
        stored: tensors that it is stored in, by names such as "rowwise.data".
    """

    format: Reducible
    shape: tuple[int, int]
    padded: tuple[int, int]
    place: Span
    operands: dict[str, Operand]
    stored: dict[str, Tensor]

    def shard_values(self, shard: Shard | None) -> tuple[Span, Tensor] | None:
        """Return the range of the matrix that is in this rank's shard, and its values in bf16."""
        if shard is None:
            return None
        start = shard.slot.span.start
        owned_span = Span(start + shard.owned.start, start + shard.owned.stop)
        span = held_part(self.place, owned_span)
        if span is None:
            return None
        first = self.place.start - owned_span.start
        return span, shard.master[first + span.start : first + span.stop].to(NOMINAL)

    def around(self, shard_values: tuple[Span, Tensor] | None) -> Tensor:
        """Return the padded matrix with this rank's elements, and zeros elsewhere."""
        rows, columns = self.shape
        device = self.stored["rowwise.data"].device
        flat_tensor = torch.zeros(rows * columns, dtype=NOMINAL, device=device)
        if shard_values is not None:
            span, values = shard_values
            flat_tensor[span.start : span.stop] = values
        padding = (0, self.padded[1] - columns, 0, self.padded[0] - rows)
        return F.pad(flat_tensor.view(self.shape), padding)


def matrices(slot: BufferSlot) -> Iterator[ShardedMatrix]:
    """Yield each matrix of a quantized parameter, with its place in the buffer, in order."""
    parameter = cast(QuantizedParameter, slot.parameter)
    rows, columns = parameter.shape[-2:]
    for number, (member, format) in enumerate(
        zip(parameter.members, parameter.formats, strict=True)
    ):
        start = slot.span.start + number * rows * columns
        yield ShardedMatrix(
            format.of_masters(),
            (rows, columns),
            padded_shape(format, (rows, columns)),
            Span(start, start + rows * columns),
            member.operands,
            # What lies in the parameter's own memory, whatever its members read.
            {k: t[number] if parameter.dim() == 3 else t for k, t in parameter.stored.items()},
        )


@torch.no_grad()
def quantize_shards(
    buffers: Iterable[Buffer], shards: Iterable[Shard], reduce_amax: ReduceAmax
) -> None:
    """Quantize this rank's shards into the gather buffers, with amaxes reduced over all ranks.

    This is a collective. Every rank knows all scales before any byte is gathered.

    Args:
        buffers: all buffers; those that do not gather bytes are left out.
        shards: the shards of this rank.
        reduce_amax: MAX over the ranks; called once, with the amaxes of all parameters.
    """
    by_name = {shard.name: shard for shard in shards}
    casts = [
        (buffer, matrix, matrix.shard_values(by_name.get(slot.name)))
        for buffer in buffers
        if buffer.gathers_bytes
        for slot in buffer.slots
        for matrix in matrices(slot)
    ]
    if not casts:
        return
    amaxes = [
        matrix.format.amaxes(matrix.around(shard_values)) for _, matrix, shard_values in casts
    ]
    reduced_tensors: tuple[Tensor, ...] = torch.split(
        reduce_amax(torch.cat(amaxes)), [len(amax) for amax in amaxes]
    )
    for (buffer, matrix, shard_values), largest_tensor in zip(casts, reduced_tensors, strict=True):
        _cast(buffer, matrix, shard_values, largest_tensor)


def _cast(
    buffer: Buffer, matrix: ShardedMatrix, shard_values: tuple[Span, Tensor] | None, amaxes: Tensor
) -> None:
    quantized = matrix.format.quantize_with(matrix.around(shard_values), amaxes)
    for key, tensor in tensors_of(quantized):
        if OperandPart.of(key).field != "data":
            matrix.stored[key].copy_(tensor)
    if shard_values is not None:
        span, _ = shard_values
        elements = slice(matrix.place.start + span.start, matrix.place.start + span.stop)
        for side, flat_tensor in buffer.gathered.items():
            rows, columns = matrix.shape
            codes = quantized.operands[side].unpacked()[:rows, :columns]
            flat_tensor[elements] = codes.reshape(-1)[span.start : span.stop]
    matrix.format.update()


@torch.no_grad()
def take_gathered(buffer: Buffer, slot: BufferSlot) -> None:
    """Fill a parameter's packed and transposed bytes from the all-gathered bytes."""
    for matrix in matrices(slot):
        (rows, columns), (down, across) = matrix.shape, matrix.padded
        for side, operand in matrix.operands.items():
            storage = operand.storage
            gathered = side in buffer.gathered
            if gathered and storage.element.per_byte == 1:
                continue
            flat_tensor = buffer.gathered[side if gathered else "rowwise"]
            codes = flat_tensor[matrix.place.start : matrix.place.stop].view(matrix.shape)
            padded = F.pad(codes, (0, across - columns, 0, down - rows))
            stored = matrix.stored[OperandPart(side, "data").part]
            storage.element.pack_(padded.t() if storage.transposed else padded, stored)
