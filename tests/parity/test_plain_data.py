"""What a verdict holds is plain data, whatever the tensors were that it is about."""

from __future__ import annotations

import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import culprit, divergence, verdict

from pytest_precision import Cell, Observation, Verdict, whole
from pytest_precision.check.case import Case
from pytest_precision.check.disagreement import disagreement
from pytest_precision.check.terms import Terms
from pytest_precision.parity.plain_data import as_plain
from pytest_precision.probes.lost_updates.measured import UpdateMeter
from pytest_precision.trace.data_log import write_data
from pytest_precision.trace.header import Header
from pytest_precision.trace.moment import END, INIT, Moment
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.recording import Recording
from pytest_precision.trace.writer import TraceWriter

DTYPES = sorted({one for one in vars(torch).values() if isinstance(one, torch.dtype)}, key=str)

SHAPES = [(), (1,), (3,), (2, 3), (2, 1, 2), (0,), (0, 3)]

MOMENTS = (
    INIT,
    *(Moment(0, "train", 1, phase) for phase in ("forward_backward", "reduce_grads")),
    *(Moment(0, "train", 1, phase) for phase in ("clip_grads", "optimizer_step", END)),
)


def side(name: str, folder: Path, kind: str, tensor: torch.Tensor) -> Recording:
    """One rank that shows one tensor at each moment."""
    seen: list[Observation] = [whole(kind, "freqs", tensor)]
    with TraceWriter(folder, 0) as writer:
        for moment in MOMENTS:
            writer.add(moment, seen)
        writer.finish(Header(1, {}, {}))
    write_data(folder, 0)
    UpdateMeter().write(folder, 0)
    return Recording(name, Cell(sequence="train1"), Trace(folder, 1))


def verdict_on(kind: str, candidate: torch.Tensor, reference: torch.Tensor) -> Verdict:
    """The verdict on two runs that differ in one tensor, with all figures of a failure."""
    with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
        sides = (
            side("candidate", Path(ours), kind, candidate),
            side("reference", Path(theirs), kind, reference),
        )
        case = Case(*sides, Terms.of(None))
        assert case.judgement.first is not None
        ruling = disagreement(case, case.judgement.first)
        figures = case.figures() | dict(ruling.figures)
        sides_in_words = dict.fromkeys(("candidate", "reference", "workload", "criterion"), "")
        axes = {"world_size": 1, "sequence": "train1"}
        return Verdict(
            nodeid="t.py::t", axes=axes, ruling=ruling, figures=figures, **sides_in_words
        )


def expect_plain(found: Verdict) -> dict[str, Any]:
    """Strict JSON brings it back as it was."""
    data = found.as_dict()
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    return data


@st.composite
def two_that_differ(draw: st.DrawFn) -> tuple[str, tuple[int, ...], bytes, bytes]:
    """A dtype of torch, a shape, and the bytes of two tensors of both, which are not the same."""
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([shape for shape in SHAPES if math.prod(shape)]))
    size = math.prod(shape) * dtype.itemsize
    special = st.sampled_from([b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xf0"])
    one = st.one_of(st.binary(min_size=size, max_size=size), special.map(lambda one: one * size))
    ours, theirs = draw(st.tuples(one, one).filter(lambda both: both[0] != both[1]))
    if dtype is torch.bool:
        ours = ours.translate(BOOLS)
        theirs = bytes(1 - held for held in ours)
    return str(dtype).removeprefix("torch."), shape, ours, theirs


BOOLS = bytes(value & 1 for value in range(256))
"""A bool has two bytes that mean something."""


def tensor(dtype: str, shape: tuple[int, ...], held: bytes) -> torch.Tensor:
    """A tensor of these bytes."""
    if not held:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    elements = torch.frombuffer(bytearray(held), dtype=torch.uint8).view(getattr(torch, dtype))
    return elements.view(shape)


@pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@given(two_that_differ(), st.sampled_from(["buffer", "param", "exp_avg"]))
@settings(max_examples=90, deadline=None)
def test_two_tensors_that_differ_make_plain_data(
    drawn: tuple[str, tuple[int, ...], bytes, bytes], kind: str
) -> None:
    """Of every dtype, shape and bit pattern: they differ, and JSON holds the verdict."""
    dtype, shape, *both = drawn
    data = expect_plain(verdict_on(kind, *(tensor(dtype, shape, held) for held in both)))
    assert data["outcome"] == "fail"
    assert data["divergence"]["kind"] == kind


LIKE = st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES))


@pytest.mark.filterwarnings("ignore:ComplexHalf support:UserWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@given(st.tuples(LIKE, LIKE).filter(lambda both: both[0] != both[1]), st.booleans())
@settings(max_examples=50, deadline=None)
def test_other_dtypes_and_shapes_make_plain_data(
    both: tuple[tuple[torch.dtype, tuple[int, ...]], ...], state: bool
) -> None:
    """Of empty tensors and of those without dimensions, too."""
    ours, theirs = (
        tensor(str(dtype).partition(".")[2], shape, bytes(math.prod(shape) * dtype.itemsize))
        for dtype, shape in both
    )
    data = expect_plain(verdict_on("state" if state else "buffer", ours, theirs))
    assert data["divergence"]["error"] in ("dtype", "shape")


@pytest.mark.parametrize(
    ("value", "held"),
    [
        (3 + 1j, "(3+1j)"),
        (np.complex64(1j), "1j"),
        (np.float64(1.5), 1.5),
        (np.float32("inf"), "inf"),
        (np.uint64(2**64 - 1), 2**64 - 1),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (torch.tensor(True), True),
        (torch.tensor(-0.0), -0.0),
        (torch.tensor(math.nan, dtype=torch.bfloat16), "nan"),
        (torch.float8_e4m3fn, "torch.float8_e4m3fn"),
        (torch.Size((2, 3)), [2, 3]),
        (torch.device("cpu"), "cpu"),
        ({1: (math.nan, {"x": None})}, {"1": ["nan", {"x": None}]}),
        (10**400, hex(10**400)),
        (10**5000, hex(10**5000)),
        ("\udcff", "\\udcff"),
        (DTYPES, [str(one) for one in DTYPES]),
    ],
    ids=range(18),
)
def test_what_is_no_plain_data_becomes_some(value: object, held: object) -> None:
    """A number where JSON has it, else a text; the same after a way through strict JSON."""
    found = json.loads(json.dumps(as_plain(value), allow_nan=False))
    assert (found, type(found)) == (held, type(held))
    if isinstance(held, float):
        assert math.copysign(1, found) == math.copysign(1, held)


def test_an_object_that_has_no_text_is_plain_too() -> None:
    """An error of its class is not one of the report."""

    class Wordless:
        shape = ()

        def __str__(self) -> str:
            raise NotImplementedError

        item = __str__

    assert "Wordless object at" in as_plain([Wordless()])[0]


def test_every_field_of_a_verdict_is_plain() -> None:
    """Whoever makes it: figures, divergence and constants of a culprit, which all readers take."""
    odd = {"candidate": torch.tensor(1j), "reference": np.float64(math.inf)}
    named = culprit(constants={"candidate": {"x": torch.bool}, "reference": {"x": {1: 1j}}})
    made = verdict("fail", "why", divergence=divergence(**odd | {"index": torch.Size((1,))}))
    found = json.loads(json.dumps(made, allow_nan=False))
    assert found == made
    assert (found["divergence"]["candidate"], found["divergence"]["reference"]) == ("1j", "inf")
    assert named.as_dict()["constants"]["candidate"] == {"x": "torch.bool"}
    assert named.as_dict()["constants"]["reference"] == {"x": "{1: 1j}"}
