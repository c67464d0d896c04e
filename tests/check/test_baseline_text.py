"""Baselines are text: what a run computed comes back bit for bit, and nothing else is believed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from pytest_precision import Chunk, Observation, Span, whole
from pytest_precision.check.baseline_files import BaselinePlace
from pytest_precision.check.baseline_text import CheckBaseline, KeptMoment, KeptSide, WholeTensor
from pytest_precision.check.baseline_trace import kept_side, trace_of
from pytest_precision.errors import BaselineError, NoBaselineError
from pytest_precision.parity.compare.bounds import Norm
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import judge
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.reader import Header, Trace
from pytest_precision.trace.writer import TraceWriter

STEP = Moment(0, "train", 1, "forward_backward")

WEIGHT = torch.arange(60, dtype=torch.float32).view(10, 6)

BITWISE = Criteria.of(None)


def sharded(folder: Path, change: float = 0.0) -> Trace:
    """Return a trace of two ranks: rows of a weight, spans of a moment, and a loss of each rank."""
    for rank in range(2):
        rows = WEIGHT[5 * rank : 5 * rank + 5].clone()
        rows[0, 0] += change
        seen = [
            Observation("param", "a weight", rows, (10, 6), Chunk((5 * rank, 0), (5, 6))),
            Observation(
                "exp_avg", "a weight", rows.view(-1), (10, 6), Span(30 * rank, 30 + 30 * rank)
            ),
            whole("loss", "microbatch 0", torch.tensor(1.5 + rank), local=True),
        ]
        with TraceWriter(folder, rank) as writer:
            writer.add(INIT, seen[:1])
            writer.add(STEP, seen)
            writer.finish(Header(2, {}, {"torch": "x"}))
    return Trace(folder, 2)


def test_a_run_comes_back_from_its_text(tmp_path: Path) -> None:
    """Pieces are put together, small tensors are kept, and of others a digest of the whole."""
    (tmp_path / "run").mkdir()
    (tmp_path / "again").mkdir()
    trace = sharded(tmp_path / "run")
    kept = kept_side(trace, "mine:layout", BITWISE)
    text = CheckBaseline(
        "t.py::test[a]", {"torch": "x y"}, {"candidate": kept, "reference": kept}
    ).text()
    assert re.search(r"^param #[0-9a-f]{32} float32 10x6 \* a weight$", text, re.MULTILINE)
    assert "loss =0000c03f(1.5) float32 - 0 microbatch 0\n" in text
    assert "loss =00002040(2.5) float32 - 1 microbatch 0\n" in text
    assert text.endswith("side reference mine:layout\nas candidate\n")
    found = CheckBaseline.of_text(text)
    assert (found.test, found.key) == ("t.py::test[a]", {"torch": "x y"})
    assert found.sides == {"candidate": kept, "reference": kept}
    again = trace_of(found.sides["reference"], tmp_path / "again", {})
    assert again.moments == trace.moments
    assert kept_side(again, "mine:layout", BITWISE) == kept


def test_one_bit_is_seen_in_a_digest(tmp_path: Path) -> None:
    """Of a weight that two ranks share, whoever holds the element."""
    for name in ("then", "now", "as_then", "as_now"):
        (tmp_path / name).mkdir()
    then, now = (
        trace_of(kept_side(sharded(tmp_path / name, by), "x", BITWISE), tmp_path / f"as_{name}", {})
        for name, by in (("then", 0.0), ("now", 2e-38))
    )
    judgement = judge(now, then, BITWISE)
    assert judgement.first is not None
    assert (judgement.first.pair.kind, judgement.first.pair.moment) == ("param", INIT)


def test_a_tolerance_keeps_the_values_that_it_needs(tmp_path: Path) -> None:
    """Digests tell nothing of how far off a value is; and too many values are no baseline."""
    (tmp_path / "run").mkdir()
    trace = sharded(tmp_path / "run")
    side = kept_side(trace, "x", Criteria.of({"exp_avg": Norm(1e-3)}))
    lengths = {one.kind: len(one.value) for kept in side.moments for one in kept.tensors}
    assert lengths == {"param": 33, "exp_avg": 1 + 2 * 240, "loss": 9}


def test_too_many_values_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the number of bytes and what to do."""
    monkeypatch.setattr("pytest_precision.check.baseline_trace.VALUE_BYTES", 100)
    trace = sharded(tmp_path)
    with pytest.raises(
        BaselineError,
        match=r"at most 100 bytes of tensors under a tolerance, whose values .* but got",
    ):
        kept_side(trace, "x", Criteria.of(Norm(1e-3)))


@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("<<<<<<< HEAD", 2),
        ("param #12 float32 2 * w", 5),
        ("param =00 float32 x * w", 5),
        ("as reference", 4),
        ("at 0 0 train one forward_backward", 5),
        ("side candidate x", 4),
    ],
)
def test_what_is_no_baseline_is_refused(line: str, instead: int) -> None:
    """Markers of a merge, cut digests: the message has the line, and says to update."""
    side = KeptSide("x", (1,), [KeptMoment(0, INIT, [])])
    lines = CheckBaseline("t", {}, {"candidate": side}).text().splitlines()
    text = "\n".join([*lines[: instead - 1], line])
    words = (
        f"expected a baseline but got line {instead}, '{line}', which cannot be read; "
        "make the baseline again with --precision-baseline=update"
    )
    with pytest.raises(BaselineError, match=re.escape(words)):
        CheckBaseline.of_text(text)


@pytest.mark.parametrize(
    ("dtype", "value"), [("int4x", "=00"), ("float32", "=00"), ("Tensor", "=00")]
)
def test_tensors_that_cannot_be_are_refused(tmp_path: Path, dtype: str, value: str) -> None:
    """A dtype that torch lacks, and bytes that do not fill the shape."""
    tensor = WholeTensor("param", "w", dtype, (2,), None, value)
    with pytest.raises(BaselineError, match="expected"):
        trace_of(KeptSide("x", (1,), [KeptMoment(0, INIT, [tensor])]), tmp_path, {})


def test_another_environment_is_named(tmp_path: Path) -> None:
    """By what it has otherwise; a file that is written again as it is stays untouched."""
    place = BaselinePlace.of_test(tmp_path, "tests/test_a.py::test_b[fp32-x*y]", 2)
    baseline = CheckBaseline("t", {"torch": "2.9"}, {})
    assert place.write(baseline)
    assert not place.write(baseline)
    assert place.read({"torch": "2.9"}) == baseline
    (file,) = tmp_path.rglob("*.txt")
    assert file.parent == tmp_path / "tests/test_a.py/test_b"
    assert file.name.startswith("fp32-x%2Ay-check2.")
    with pytest.raises(NoBaselineError, match=r"but one for torch 2\.9, not 2\.13; make one with"):
        place.read({"torch": "2.13"})


@pytest.mark.parametrize("name", ["", "/etc", "../x", "a/../b", "a b", "a/", "."])
def test_a_baseline_has_a_name_for_a_folder(tmp_path: Path, name: str) -> None:
    """Below the folder of all baselines, and nowhere else."""
    with pytest.raises(ValueError, match="the name of a baseline"):
        BaselinePlace.of_name(tmp_path, name, "t.py::test")


def test_a_folder_that_cannot_be_written_to_is_named(tmp_path: Path) -> None:
    """It is not the comparison that failed."""
    (tmp_path / "test_it.py").write_text("in the way of a folder")
    place = BaselinePlace.of_test(tmp_path, "test_it.py::test_it", 1)
    with pytest.raises(BaselineError, match=r"can be written to but got .*test_it\.py/test_it \("):
        place.write(CheckBaseline(place.test, {}, {}))
    assert [*tmp_path.rglob("*.partial*")] == []


def test_a_damaged_baseline_is_written_anew(tmp_path: Path) -> None:
    """Nobody reads what is replaced but its first line, which says that it is a baseline."""
    place = BaselinePlace.of_test(tmp_path, "test_it.py::test_it", 1)
    baseline = CheckBaseline(place.test, {}, {})
    place.write(baseline)
    (file,) = tmp_path.rglob("*.txt")
    file.write_bytes(file.read_bytes() + b"\xff")
    assert place.write(baseline)
    assert place.read({}) == baseline


def test_a_file_of_another_tool_is_no_baseline_to_replace(tmp_path: Path) -> None:
    """It stays where a baseline is written, also by way of a link; one of another form is ours."""
    place = BaselinePlace.of_name(tmp_path / "in", "golden/mine", "test_it.py::test_it")
    kept = CheckBaseline("test_it.py::test_it", {"torch": "2"}, {})
    file = place.file(kept.key)
    file.parent.mkdir(parents=True)
    theirs = tmp_path / "theirs.txt"
    theirs.write_bytes(b"precious\n")
    file.symlink_to(theirs)
    for _ in range(2):
        with pytest.raises(BaselineError, match="which pytest-precision did not make; move it"):
            place.write(kept)
        assert theirs.read_bytes() == b"precious\n"
        if file.is_symlink():
            file.unlink()
            file.write_bytes(b"precious\n")
    assert file.read_bytes() == b"precious\n"
    file.write_text("pytest-precision baseline 7\n")
    assert place.write(kept)
