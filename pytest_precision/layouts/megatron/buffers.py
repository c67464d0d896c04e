"""Contiguous buffers for many parameters and their gradients, cut into buckets.

Which sizes are padded follows Megatron-LM, `megatron/core/distributed/param_and_grad_buffer.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_precision.engine.observation import Span
from pytest_precision.errors import expected_but_got
from pytest_precision.layouts.megatron.packing import held_part
from pytest_precision.layouts.megatron.stored_model import Arrangement, Options
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.tensor_key import OperandPart
from pytest_precision.modules.parameter import QuantizedParameter

PARAMETER_MULTIPLE = 64
"""A parameter's offset is a multiple of so many elements: 128 bytes in bf16, as GEMMs require."""

ROWWISE = "rowwise.data"
"""The part of a quantized parameter that lies in a buffer; scales and transposed copies do not."""

POISON = 0xFF
"""The byte of padding between quantized parameters: NaN in e4m3."""

BUCKET_MULTIPLE = 128
"""A bucket's size is a multiple of so many elements, and of the number of ranks."""


@dataclass(frozen=True)
class BufferSlot:
    """The place of one parameter in a buffer of many parameters and their gradients.

    Attributes:
        name: the parameter's name in its model.
        parameter: the parameter itself.
        span: its elements in the buffer.
    """

    name: str
    parameter: nn.Parameter
    span: Span


@dataclass
class Bucket:
    """A contiguous part of a parameter buffer that is reduced and all-gathered as a whole.

    Attributes:
        span: its elements in the buffer, padding included; a multiple of the number of ranks.
        slots: the parameters in it, in the order of their elements.
        stale: whether the parameters lag behind the masters.
        waiting: those of `slots` whose gradients are not complete yet.
        works: collectives that were started and are not waited for yet.
        received: this rank's part of the gradients of all ranks, until they are summed.
    """

    span: Span
    slots: tuple[BufferSlot, ...]
    stale: bool = False
    waiting: list[BufferSlot] = field(default_factory=list)
    works: list[dist.Work] = field(default_factory=list)
    received: Tensor | None = None


class Buffer:
    """The contiguous memory of the parameters and gradients of one dtype, divided into buckets.

    The parameters stand in reverse order, so that the bucket whose gradients are complete first is
    the first one. Every rank owns an equal part of every bucket, wherever that cuts a parameter.

    Args:
        parameters: names and parameters, which are all stored in the same way.
        rank: rank of this process.
        world_size: number of ranks.
        bucket_size: number of elements at which a bucket takes no further parameter.
        dtype: dtype in which parameters are gathered; uint8 for the bytes of quantized ones.
        grad_dtype: dtype in which gradients are accumulated and reduced.
        shared: whether parameters are gathered in the memory of the gradients, which must be zeroed
            before gradients are accumulated there; the parameters themselves then live elsewhere.

    Attributes:
        buckets: all buckets, in the order of their elements.
        grads: all gradients, flat.
        params: all parameters, or their rowwise codes, one per byte, flat; padding is NaN where the
            memory is their own.
        columns: their columnwise bytes, flat, or None where these are not gathered.
        bytes: packed rowwise codes, flat, or None where codes are not packed.
    """

    def __init__(
        self,
        parameters: Iterable[tuple[str, nn.Parameter]],
        *,
        rank: int,
        world_size: int,
        bucket_size: int,
        dtype: torch.dtype,
        grad_dtype: torch.dtype,
        shared: bool,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.shared = shared
        self.buckets = [*_buckets([*parameters][::-1], bucket_size, world_size)]
        first = self.buckets[0].slots[0].parameter
        size = self.buckets[-1].span.stop
        self.grads = torch.zeros(size, dtype=grad_dtype, device=first.device)
        if shared:
            if grad_dtype.itemsize < dtype.itemsize:
                raise ValueError(
                    expected_but_got(
                        f"gradients at least as wide as {dtype}, since parameters are gathered in "
                        "their memory,",
                        grad_dtype,
                        "choose a wider main_grads_dtype, or leave "
                        "reuse_grad_buffer_for_param_gather out",
                    )
                )
            self.params = self.grads.view(dtype)[:size]
        else:
            poison = POISON if dtype == torch.uint8 else math.nan
            self.params = torch.full((size,), poison, dtype=dtype, device=first.device)

        self.columns: Tensor | None = None
        self.bytes: Tensor | None = None
        if not self.gathers_bytes:
            return
        assert isinstance(first, QuantizedParameter)
        operands = first.members[0].operands
        if not operands["columnwise"].storage.transposed:
            self.columns = torch.full_like(self.params, POISON)
        if operands["rowwise"].storage.element.per_byte > 1:
            sizes = [_stored_tensor(slot).numel() for slot in self.slots]
            self.bytes = torch.zeros(sum(sizes), dtype=torch.uint8, device=first.device)
            parts: tuple[Tensor, ...] = torch.split(self.bytes, sizes)
            self._bytes_of = {s.name: part for s, part in zip(self.slots, parts, strict=True)}

    @property
    def slots(self) -> Iterator[BufferSlot]:
        """Iterate over all parameters in the buffer, in the order in which they lie in it."""
        return (slot for bucket in self.buckets for slot in bucket.slots)

    @property
    def gathers_bytes(self) -> bool:
        """Return whether the buffer gathers the bytes of quantized parameters."""
        return self.params.dtype == torch.uint8

    @property
    def gathered(self) -> dict[str, Tensor]:
        """Return the flat all-gather buffers, named "rowwise" and, if it exists, "columnwise"."""
        return {"rowwise": self.params} | (
            {} if self.columns is None else {"columnwise": self.columns}
        )

    def view(self, slot: BufferSlot, flat_tensor: Tensor) -> Tensor:
        """Return a view of one parameter's elements of a flat tensor, in the parameter's shape."""
        return flat_tensor[slot.span.start : slot.span.stop].view(slot.parameter.shape)

    def resident(self, slot: BufferSlot) -> dict[str, Tensor]:
        """Return views of a quantized parameter's bytes in the buffer, in their stored shapes.

        There are none where parameters are gathered in the memory of the gradients.
        """
        if not self.gathers_bytes:
            return {}
        if self.bytes is not None:
            return {ROWWISE: self._bytes_of[slot.name].view(_stored_tensor(slot).shape)}
        return {
            OperandPart(side, "data").part: self.view(slot, flat_tensor)
            for side, flat_tensor in self.gathered.items()
        }

    def zero_grads(self) -> None:
        """Zero the gradients in the buffer; fill the padding with NaN, so that reads of it show."""
        self.grads.fill_(math.nan)
        for slot in self.slots:
            self.view(slot, self.grads).zero_()

    def owned(self, bucket: Bucket, slot: BufferSlot) -> Span | None:
        """Return (start, stop) of this rank's part of a flattened parameter; None if empty."""
        return held_part(slot.span, self._share(bucket))

    def part(self, slot: BufferSlot, owned: Span, flat: Tensor) -> Tensor:
        """Return a view of that part of one parameter in `flat` which this rank updates."""
        return flat[slot.span.start + owned.start : slot.span.start + owned.stop]

    def reduce(self, bucket: Bucket) -> None:
        """Start the reduction of a bucket's gradients, of which each rank gets an equal part.

        Each rank receives its part from all ranks and sums in fp32 in the order of ranks, as
        Megatron-LM's `reduce_scatter_with_fp32_accumulation` does: a ring adds in an order that
        depends on where in the buffer a gradient lies, and three numbers have several sums.
        """
        whole = self.grads[bucket.span.start : bucket.span.stop]
        bucket.received = torch.empty_like(whole)
        bucket.works = [dist.all_to_all_single(bucket.received, whole, async_op=True)]

    def gather(self, bucket: Bucket) -> None:
        """Start the all-gather of a bucket's parameters."""
        share = self._share(bucket)
        bucket.works = [
            dist.all_gather_into_tensor(
                flat_tensor[bucket.span.start : bucket.span.stop],
                flat_tensor[share.start : share.stop],
                async_op=True,
            )
            for flat_tensor in self.gathered.values()
        ]

    def wait(self, bucket: Bucket) -> None:
        """Wait for the collectives of a bucket, and sum the gradients that this rank received."""
        for work in bucket.works:
            work.wait()
        bucket.works = []
        if bucket.received is not None:
            share = self._share(bucket)
            first, *others = bucket.received.view(self.world_size, -1)
            total = first.to(torch.float32, copy=True)
            for other in others:
                total += other
            self.grads[share.start : share.stop].copy_(total)
            bucket.received = None

    def _share(self, bucket: Bucket) -> Span:
        size = (bucket.span.stop - bucket.span.start) // self.world_size
        start = bucket.span.start + self.rank * size
        return Span(start, start + size)


def buffers_of(cell: Cell, arrangement: Arrangement, options: Options) -> Iterator[Buffer]:
    """Yield a buffer per dtype of trained parameters, and one for quantized parameters."""
    kinds: dict[tuple[torch.dtype, bool], list[tuple[str, nn.Parameter]]] = {}
    for name, parameter in arrangement.model.named_parameters():
        if parameter.requires_grad:
            quantized = isinstance(parameter, QuantizedParameter)
            kinds.setdefault((parameter.dtype, quantized), []).append((name, parameter))
    for (dtype, quantized), parameters in kinds.items():
        shared = quantized and options.reuse_grad_buffer_for_param_gather
        yield Buffer(
            parameters,
            rank=dist.get_rank(),
            world_size=cell.world_size,
            bucket_size=options.bucket_size,
            dtype=torch.uint8 if quantized and not shared else dtype,
            grad_dtype=options.main_grads_dtype,
            shared=shared,
        )


def _buckets(
    parameters: list[tuple[str, nn.Parameter]], bucket_size: int, world_size: int
) -> Iterator[Bucket]:
    multiple = math.lcm(BUCKET_MULTIPLE, world_size)
    start = 0
    slots = list[BufferSlot]()
    for number, (name, parameter) in enumerate(parameters, 1):
        first = _padded(slots[-1].span.stop if slots else start, PARAMETER_MULTIPLE)
        slots.append(BufferSlot(name, parameter, Span(first, first + parameter.numel())))
        if slots[-1].span.stop - start >= bucket_size or number == len(parameters):
            # Relative to the bucket: its size must be a multiple of the number of ranks.
            stop = start + _padded(slots[-1].span.stop - start, multiple)
            yield Bucket(Span(start, stop), tuple(slots))
            start = stop
            slots = []


def _stored_tensor(slot: BufferSlot) -> Tensor:
    """Return a quantized parameter's rowwise bytes as its format stores them, packed and padded."""
    assert isinstance(slot.parameter, QuantizedParameter)
    return slot.parameter.stored[ROWWISE]


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
