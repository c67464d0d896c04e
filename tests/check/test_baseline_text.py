"""Baselines are text: what a run computed comes back bit for bit, and nothing else is believed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pytest_precision import Chunk, Observation, Span, whole
from pytest_precision.errors import BaselineError, NoBaselineError
from pytest_precision.parity.compare.bounds import Norm
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import judge
from pytest_precision.probes.baselines.baseline_files import BaselinePlace, claim
from pytest_precision.probes.baselines.baseline_lines import baseline_of
from pytest_precision.probes.baselines.baseline_text import (
    CheckBaseline,
    KeptMoment,
    KeptSide,
    WholeTensor,
    seal_of,
)
from pytest_precision.probes.baselines.baseline_trace import kept_side, trace_of
from pytest_precision.trace.header import Header
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.reader import Trace
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
    assert re.search(r"\nside reference mine:layout\nas candidate\nend \d+ [0-9a-f]{32}\n$", text)
    found = baseline_of(text)
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
    monkeypatch.setattr("pytest_precision.probes.baselines.baseline_trace.VALUE_BYTES", 100)
    trace = sharded(tmp_path)
    with pytest.raises(
        BaselineError,
        match=r"at most 100 bytes of tensors under a tolerance, whose values .* but got",
    ):
        kept_side(trace, "x", Criteria.of(Norm(1e-3)))


TENSOR = "loss =0000c03f(1.5) float32 - 0 microbatch 0"

BASELINE = [
    "pytest-precision baseline 1",
    "test t",
    "key torch x",
    "side candidate x",
    "ranks 1",
    "at 0 -1 init 0 init",
    TENSOR,
    "at 0 0 train 1 forward_backward",
    TENSOR,
    "side reference y",
    "as candidate",
]
"""The lines of a file of an older release, without a seal."""


def sealed(lines: list[str]) -> str:
    """The text of a file as it is written now, whatever its lines say."""
    lines = ["pytest-precision baseline 2", *lines[1:]]
    return "\n".join([*lines, seal_of(lines), ""])


@pytest.mark.parametrize(
    ("number", "line", "why"),
    [
        (1, "<<<<<<< HEAD", ""),
        (1, "\ufeffpytest-precision baseline 1", ""),
        (1, "pytest-precision baseline 3", ""),
        (2, "<<<<<<< HEAD", "names the test"),
        (3, "test t", "names the test"),
        (3, 'key torch "x', "no escaped text"),
        (5, "key numpy 2", "below a side"),
        (4, "key torch y", "twice"),
        (5, "ranks 1000000", "1000000 ranks in a file of 1"),
        (5, "ranks 99999999999999999999999", "no whole number from 1"),
        (5, "ranks 0", "no whole number from 1"),
        (5, "ranks", "no whole number from 1"),
        (5, "ranks ٣", "no whole number from 1"),
        (5, "at 0 -1 init 0 init", "ranks of 0 parts"),
        (5, TENSOR, "belongs to no moment"),
        (6, "ranks 1", "has ranks already"),
        (6, "at 1 -1 init 0 init", "ranks of 1 parts"),
        (6, "at 0 -2 init 0 init", "no whole number from -1"),
        (6, "at 0 0 train one forward_backward", "no whole number from 0"),
        (6, "at 0 0 train 1", "five words"),
        (7, "=======", "no line of a baseline"),
        (7, "param #12 float32 2 * w", "neither a digest nor bytes"),
        (7, "param =0 float32 - * w", "neither a digest nor bytes"),
        (7, "param =00 float32 x * w", "no whole number"),
        (7, "param =00 float32 2 * w", "1 bytes for 2 of float32"),
        (7, "param =00 int4x 2 * w", "a dtype that this torch has"),
        (7, "param =00 nn 2 * w", "a dtype that this torch has"),
        (7, f"param #{'0' * 32} float32 {2**59}x4 * w", "in a shape, elements"),
        (7, "param =00 uint8 1 1 w", "rank 1 of 1"),
        (7, "param =00 uint8 1 * w\\", "no escaped text"),
        (8, TENSOR, "the tensor is there twice"),
        (8, "at 0 -1 init 0 init", "the moment is there twice"),
        (9, "at 0 -1 init 0 other", "below a later one"),
        (10, "side candidate x", "the side is there twice"),
        (11, "side other z", "the side above it has no moment"),
        (11, "as reference", "names no side above"),
        (11, "as other", "names no side above"),
        (9, "as candidate", "names no side above"),
    ],
)
def test_what_is_no_baseline_is_refused(number: int, line: str, why: str) -> None:
    """Markers of a merge, edited counts, cut digests: the message has the line and the next step.

    With a seal and without one, as files of older releases are.
    """
    lines = [*BASELINE[: number - 1], line, *BASELINE[number:]]
    for text in (sealed(lines) if number > 1 else "", "\n".join([*lines, ""])):
        with pytest.raises(BaselineError) as refused:
            baseline_of(text or "\n".join([*lines, ""]))
        said = str(refused.value)
        assert f"line {number}, {line[:80]!r}" in said
        assert why in said
        assert said.endswith("make the baseline again with --precision-baseline=update")


def test_all_that_is_written_is_read(tmp_path: Path) -> None:
    """Names and kinds of every text, those that begin other lines, and ends of lines of Windows."""
    tensors = [
        WholeTensor(kind, name, "int8", (), rank, "=01")
        for rank, kind in enumerate(("end", "at", "as", "side", "a b", "é%", "kind"))
        for name in ("", " ", "a\u2028b", "\x85", "a\nb\r", "\udcff", '"\\')
    ]
    side = KeptSide("x\ny", (7,), [KeptMoment(0, INIT, tensors)])
    baseline = CheckBaseline("t[\udcff]", {"a": "b\nend"}, {"candidate": side})
    text = baseline.text()
    assert baseline_of(text) == baseline
    assert baseline_of(text.replace("\n", "\r\n")) == baseline
    place = BaselinePlace.of_test(tmp_path, "t.py::t", 1)
    assert place.write(baseline)
    assert place.read(baseline.key) == baseline


def damage(lines: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Every way to leave out a line, to have it twice, to swap two, and to cut the file."""
    for number in range(1, len(lines)):
        yield "without", [*lines[:number], *lines[number + 1 :]]
        yield "twice", [*lines[:number], lines[number], *lines[number:]]
        yield "cut", lines[:number]
        yield (
            "swapped",
            [*lines[: number - 1], lines[number], lines[number - 1], *lines[number + 1 :]],
        )


def test_a_sealed_baseline_has_all_of_its_lines() -> None:
    """Lines that are left out, repeated, swapped, cut off or changed are an error with a line."""
    lines = sealed(BASELINE).splitlines()
    for end in ("", "\n"):
        assert baseline_of("\n".join(lines) + end).sides["candidate"].moments
    changed = [
        ("changed", [*lines[:at], lines[at].replace(old, new), *lines[at + 1 :]])
        for at, old, new in ((6, "c0", "c1"), (6, "1.5", "1.6"), (3, "x", "z"), (11, "end", "end "))
    ]
    seen = 0
    for how, other in (*damage(lines), *changed):
        for end in ("", "\n"):
            with pytest.raises(BaselineError, match=r"line \d+, '|first line"):
                baseline_of("\n".join(other) + end)
            seen += 1
        assert how
    assert seen == 2 * (4 * 11 + 4)


def test_a_cut_file_of_an_older_release_is_refused() -> None:
    """Within a line; what is cut off after a line has fewer moments than the run."""
    text = "\n".join([*BASELINE, ""])
    assert baseline_of(text).sides["reference"].moments
    with pytest.raises(
        BaselineError, match=r"line 11, 'as candidate', .*the lines below it are mis"
    ):
        baseline_of(text[:-1])


@pytest.mark.parametrize("held", [b"\xff", b"pytest-precision baseline 2\ntest \xff\n"])
def test_a_file_that_is_no_text_is_named(tmp_path: Path, held: bytes) -> None:
    """With the byte and the line, and so is a folder in its place."""
    place = BaselinePlace.of_test(tmp_path, "t.py::t", 1)
    place.write(CheckBaseline("t", {}, {}))
    (file,) = tmp_path.rglob("*.txt")
    file.write_bytes(held)
    line = held.count(b"\n") or 1
    with pytest.raises(BaselineError, match=rf"byte 0xff in line {line} of {file}"):
        place.read({})
    file.unlink()
    file.mkdir()
    with pytest.raises(BaselineError, match=rf"can be read but got {file} \(Is a directory\)"):
        place.read({})


def test_a_baseline_has_one_writer(tmp_path: Path) -> None:
    """The second check of a session that would write it is refused by name, and a rerun is not."""
    file = tmp_path / "golden" / "x.12345678.txt"
    for _ in range(2):
        claim(tmp_path / "claims", file, "check 1 of a.py::test_a")
    claim(tmp_path / "claims", file.with_name("y.12345678.txt"), "check 1 of a.py::test_b")
    with pytest.raises(
        BaselineError, match=r"x\.12345678\.txt but got .*test_a and .*test_b; give"
    ):
        claim(tmp_path / "claims", file, "check 1 of a.py::test_b")
    assert len([*(tmp_path / "claims").iterdir()]) == 2


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


@pytest.mark.parametrize("name", ["", "/etc", "../x", "a/../b", "a b", "a/", ".", ".git/x"])
def test_a_baseline_has_a_name_for_a_folder(tmp_path: Path, name: str) -> None:
    """Below the folder of all baselines, and nowhere else."""
    with pytest.raises(ValueError, match="the name of a baseline"):
        BaselinePlace.of_name(tmp_path, name, "t.py::test")


@pytest.mark.parametrize("file", ["/elsewhere/test_a.py", "../test_a.py"])
def test_a_test_outside_the_root_has_no_baseline(tmp_path: Path, file: str) -> None:
    """Its folder would lie beside those of all baselines; the message says what to run."""
    with pytest.raises(BaselineError, match=r"a test with a baseline whose path .*--rootdir"):
        BaselinePlace.of_test(tmp_path, f"{file}::test_b", 1)


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
