"""Convert a recorded run into the full tensors of a baseline file, and back into a run.

Pieces of the ranks are put together first, so that a baseline says nothing about who held what, and
both sides of a comparison are traces like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import torch

from pytest_precision.engine.observation import Chunk, Observation
from pytest_precision.errors import BaselineError, expected_but_got
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import TOLD
from pytest_precision.parity.compare.logical_tensor import assemble
from pytest_precision.parity.compare.pairs import pieces_by_tensor
from pytest_precision.probes.baselines.baseline_text import KeptMoment, KeptSide, WholeTensor
from pytest_precision.trace.digests import bytes_of, digest, in_order, kept_as_it_is
from pytest_precision.trace.header import Header
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.segment_folders import folder_of, holders
from pytest_precision.trace.sound import TORCH_DTYPES
from pytest_precision.trace.writer import TraceWriter

VALUE_BYTES = 1 << 20
"""Bytes of whole tensors that a baseline keeps of one side, where a tolerance needs them."""


def kept_side(trace: Trace, layout: str, criteria: Criteria) -> KeptSide:
    """Convert a run to a baseline: values of tensors if small or under a tolerance, else hashes.

    Args:
        trace: whose pieces form whole tensors.
        layout: import path of the layout that made it.
        criteria: how equal tensors must be; what they leave out is not kept.

    Raises:
        BaselineError: a tolerance needs more bytes than a baseline should have.
    """
    segments = [
        (n, moment)
        for n, segment_moments in enumerate(trace.segments())
        for moment in segment_moments
    ]
    moments = [
        KeptMoment(number, moment, [*_whole_tensors(trace, moment, criteria)])
        for number, moment in segments
    ]
    valued = sum(
        len(tensor.value) // 2
        for kept_moment in moments
        for tensor in kept_moment.tensors
        if tensor.value.startswith("=")
        and criteria.of_tensor(tensor.kind, tensor.name).criterion.tolerates
    )
    if valued > VALUE_BYTES:
        raise BaselineError(
            expected_but_got(
                f"at most {VALUE_BYTES} bytes of tensors under a tolerance, whose values a "
                "baseline keeps,",
                f"{valued} of {layout} with {criteria}",
                "compare bit for bit, leave kinds to unchecked(reason=...), or train a smaller "
                "workload for fewer steps",
            )
        )
    return KeptSide(layout, trace.world_sizes, moments)


def trace_of(side: KeptSide, folder: Path, environment: dict[str, str]) -> Trace:
    """Write a run, read from a baseline, into a folder in the form of a recording; open that."""
    for number, _ in enumerate(side.world_sizes):
        folder_of(folder, number).mkdir(exist_ok=True)
    with ExitStack() as stack:
        writers = {
            (number, rank): stack.enter_context(TraceWriter(place, rank, digests=True))
            for number, place, rank in holders(folder, side.world_sizes)
        }
        for number, moment, tensors in side.moments:
            for rank in range(side.world_sizes[number]):
                observations = [
                    _observation(tensor) for tensor in tensors if (tensor.rank or 0) == rank
                ]
                writers[number, rank].add(moment, observations, digests=False)
        for (number, _), writer in writers.items():
            writer.finish(Header(side.world_sizes[number], {}, environment, digests=True))
    return Trace(folder, *side.world_sizes)


def _whole_tensors(trace: Trace, moment: Moment, criteria: Criteria) -> Iterator[WholeTensor]:
    for (kind, name, rank), pieces in pieces_by_tensor(trace, moment, TOLD).items():
        criterion = criteria.of_tensor(kind, name).criterion
        if criterion.left_out:
            continue
        assembled = assemble(trace, pieces)
        if assembled.fault is not None:
            raise BaselineError(
                expected_but_got(
                    "tensors that are whole, with equal bits on all ranks that hold them,",
                    f"{kind} of {name}: {assembled.fault.text}",
                    "let ranks hold all of it alike, or leave the kind to unchecked(reason=...)",
                )
            )
        first = assembled.pieces[0]
        tensor = assembled.tensor
        whole = first.dtype, first.shape, rank
        if tensor is None:
            yield WholeTensor(kind, name, *whole, f"#{first.digest}")
            continue
        nbytes = tensor.numel() * tensor.element_size()
        if kept_as_it_is(kind, nbytes) or criterion.tolerates:
            value = f"={bytes(bytes_of(in_order(tensor))).hex()}"
        else:
            value = f"#{digest(tensor)}"
        yield WholeTensor(kind, name, *whole, value)


def _observation(whole_tensor: WholeTensor) -> Observation:
    dtype = TORCH_DTYPES[whole_tensor.dtype]
    place = Chunk((0,) * len(whole_tensor.shape), whole_tensor.shape)
    local = whole_tensor.rank is not None
    if whole_tensor.value.startswith("#"):
        tensor = torch.empty(whole_tensor.shape, dtype=dtype, device="meta")
        return Observation(
            whole_tensor.kind,
            whole_tensor.name,
            tensor,
            whole_tensor.shape,
            place,
            local,
            whole_tensor.value[1:],
        )
    content = bytearray.fromhex(whole_tensor.value[1:])
    tensor = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0)
    tensor = tensor.view(dtype) if content else tensor.to(dtype)
    return Observation(
        whole_tensor.kind,
        whole_tensor.name,
        tensor.view(whole_tensor.shape),
        whole_tensor.shape,
        place,
        local,
    )
