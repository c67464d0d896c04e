"""A trace at rest gives back every bit that was observed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from pytest_precision import Chunk, Observation, Span, whole
from pytest_precision.trace import writer
from pytest_precision.trace.digests import digest
from pytest_precision.trace.header import Header
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.named_digests import XXH3, digested
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.writer import TraceWriter

HEADER = Header(1, {"grad": "no reason"}, {"torch": "x"})


def written(folder: Path, *observations: Observation) -> Trace:
    with TraceWriter(folder, 0) as writer:
        writer.add(INIT, observations)
        writer.finish(HEADER)
    return Trace(folder, 1)


def bytes_of_values(folder: Path) -> int:
    """Return where the table begins, before which the values lie."""
    table: int = json.loads((folder / "rank0.json").read_text())["table"]
    return table


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([0.0, -0.0, float("nan"), float("inf"), 1e-45]),
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t(),
        torch.tensor([0x7F, 0x80], dtype=torch.uint8).view(torch.float8_e4m3fn),
        torch.tensor(3, dtype=torch.int64),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.empty(0, 5),
    ],
    ids=lambda tensor: str(tensor.dtype),
)
def test_every_bit_comes_back(tmp_path: Path, tensor: torch.Tensor) -> None:
    """Whatever the dtype, shape and strides, the bytes are the same."""
    trace = written(tmp_path, whole("param", "w", tensor))
    (entry,) = trace.entries(INIT)
    read = trace.tensor(entry)
    assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
    raw = [t.contiguous().reshape(-1).view(torch.uint8).tolist() for t in (read, tensor)]
    assert raw[0] == raw[1]


@pytest.mark.parametrize("make", [torch.conj, lambda tensor: tensor.conj().imag])
def test_a_mark_on_other_memory_counts(tmp_path: Path, make) -> None:
    """Torch conjugates and negates by a bit that says how to read the bytes."""
    tensor = make(torch.tensor([1 + 2j]))
    assert tensor.is_conj() or tensor.is_neg()
    trace = written(tmp_path, whole("param", "w", tensor))
    (entry,) = trace.entries(INIT)
    assert torch.equal(trace.tensor(entry), tensor)


@pytest.mark.parametrize("view", [torch.conj, lambda tensor: tensor.conj().imag])
def test_views_of_one_memory_are_told_apart_by_their_mark(tmp_path: Path, view) -> None:
    """A conjugated or negated view has address, shape and strides of what it is a view of."""
    tensor = torch.tensor([1 + 2j])
    plain = tensor if view is torch.conj else tensor.imag
    trace = written(tmp_path, whole("param", "w", plain), whole("param", "view", view(tensor)))
    first, second = (trace.tensor(entry) for entry in trace.entries(INIT))
    assert torch.equal(first, plain)
    assert torch.equal(second, view(tensor))


def test_places_and_header_come_back(tmp_path: Path) -> None:
    """An index says of each piece where in the logical tensor it lies."""
    box = Observation("param", "w", torch.zeros(1, 3), (4, 3), Chunk((2, 0), (1, 3)), local=True)
    span = Observation("loss", "l", torch.zeros(2), (9,), Span(4, 6))
    trace = written(tmp_path, box, span)
    first, second = trace.entries(INIT)
    assert (first.place, first.shape, first.local) == (box.place, (4, 3), True)
    assert (second.place, second.local) == (span.place, False)
    assert trace.header == HEADER


def test_a_tensor_observed_twice_is_stored_once(tmp_path: Path) -> None:
    """The master of a layout without one is its parameter, and takes no second copy."""
    tensor = torch.ones(100)
    trace = written(tmp_path, whole("master", "w", tensor), whole("param", "w", tensor))
    assert bytes_of_values(tmp_path) == 448  # a table begins at a multiple of 64
    assert [trace.tensor(entry).sum().item() for entry in trace.entries(INIT)] == [100, 100]


def test_temporaries_at_one_address_are_kept_apart(tmp_path: Path) -> None:
    """Tensors that exist only while they are observed are not taken for each other."""
    seen = (whole("lr", f"group{i}", torch.full((3,), float(i))) for i in range(20))
    with TraceWriter(tmp_path, 0) as writer:
        writer.add(INIT, seen)
        writer.finish(HEADER)
    trace = Trace(tmp_path, 1)
    assert [trace.tensor(entry)[0].item() for entry in trace.entries(INIT)] == list(range(20))


def test_an_observed_storage_can_still_be_resized(tmp_path: Path) -> None:
    """Observing must not change what is observed: FSDP2 frees its gathered parameters."""
    tensor = torch.ones(8)
    written(tmp_path, whole("param", "w", tensor))
    tensor.untyped_storage().resize_(0)
    assert tensor.untyped_storage().size() == 0


def test_an_unfinished_trace_is_no_trace(tmp_path: Path) -> None:
    """A rank that dies while it records leaves nothing that could be read as whole."""
    with TraceWriter(tmp_path, 0) as writer:
        writer.add(INIT, [whole("param", "w", torch.ones(3))])
    with pytest.raises(FileNotFoundError):
        Trace(tmp_path, 1)


def test_moments_keep_their_order(tmp_path: Path) -> None:
    """Causal order is the order of recording, also where a step number comes twice."""
    moments = [INIT, Moment(0, "train", 1, "clip_grads"), Moment(1, "eval", 1, "evaluate")]
    with TraceWriter(tmp_path, 0) as writer:
        for moment in moments:
            writer.add(moment, [])
        writer.finish(HEADER)
    assert Trace(tmp_path, 1).moments == tuple(moments)


def digests(folder: Path, *observations: Observation, threads: int = 1) -> list[str]:
    """As a trace in a folder of its own keeps them."""
    folder.mkdir()
    with TraceWriter(folder, 0, digests=True, threads=threads) as writer:
        writer.add(INIT, observations)
        writer.finish(HEADER)
    return [entry.digest for entry in Trace(folder, 1).entries(INIT)]


def test_a_digest_taken_at_once_is_that_of_the_bytes(tmp_path: Path) -> None:
    """Whatever becomes of the tensor until its moment ends."""
    gone, stays = torch.arange(100.0), torch.arange(100.0)
    seen = digested(whole("used_param", "w", gone), XXH3)
    gone.zero_()
    (at_once,) = digests(tmp_path / "gone", seen)
    (later,) = digests(tmp_path / "stays", whole("used_param", "w", stays))
    (zeros,) = digests(tmp_path / "zeros", whole("used_param", "w", gone))
    assert at_once == later != zeros


@pytest.mark.parametrize("size", [16, 64, 1024])
def test_a_digest_of_a_transposed_tensor_is_that_of_its_copy(size: int) -> None:
    """The copy in row-major order lives until all of its bytes were read."""
    transposed = torch.arange(float(size * size)).reshape(size, size).t()
    copied = transposed.contiguous()
    assert [digest(transposed) for _ in range(5)] == [digest(copied)] * 5


def test_digests_do_not_depend_on_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tensor gets its own, in the order of the observations."""
    monkeypatch.setattr(writer, "LARGE", 0)
    seen = [whole("param", f"w{n}", torch.full((100 + n,), float(n))) for n in range(9)]
    two, one = (digests(tmp_path / str(n), *seen, threads=n) for n in (2, 1))
    assert two == one
    assert len(set(one)) == 9


def test_equal_bytes_are_written_once(tmp_path: Path) -> None:
    """What one moment has left and the next one reads lies in the file once; one bit is enough."""
    weight = torch.arange(2048.0)
    later = [Moment(0, "train", 1, phase) for phase in ("forward_backward", "optimizer_step")]
    with TraceWriter(tmp_path, 0) as writer:
        writer.add(INIT, [whole("param", "w", weight)])
        read = writer.keep(whole("used_param", "w", weight))
        weight.view(torch.int32)[7] ^= 1
        writer.add(later[0], [read])
        writer.add(later[1], [whole("param", "w", weight)])
        writer.finish(HEADER)
    trace = Trace(tmp_path, 1)
    before, used, after = (next(trace.entries(one)) for one in trace.moments)
    assert (before.offset, used.digest) == (used.offset, "")
    assert torch.equal(trace.tensor(used), torch.arange(2048.0))
    assert torch.equal(trace.tensor(after), weight)
    assert bytes_of_values(tmp_path) == 2 * weight.nbytes


def test_a_value_kept_at_once_is_that_of_the_bytes(tmp_path: Path) -> None:
    """Whatever becomes of the tensor until its moment ends, in a trace of digests, too."""
    for number, size in enumerate((3, 5000)):
        for digests in (False, True):
            tensor, folder = torch.arange(float(size)), tmp_path / f"{number}{digests}"
            folder.mkdir()
            with TraceWriter(folder, 0, digests=digests) as writer:
                seen = writer.keep(whole("grad", "w", tensor))
                tensor.zero_()
                writer.add(INIT, [seen])
                writer.finish(HEADER)
            trace = Trace(folder, 1)
            (entry,) = trace.entries(INIT)
            assert torch.equal(trace.tensor(entry), torch.arange(float(size)))
