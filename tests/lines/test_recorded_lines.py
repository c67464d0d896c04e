"""Recordings made with `--lines` name the line that made the first wrong value."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import in_this_process  # noqa: F401
import pytest
from marked_lines import marked

from pytest_precision import Cell, Parity, ParityError
from pytest_precision.__main__ import main
from pytest_precision.options import Settings
from pytest_precision.ranks.needs import Needs
from pytest_precision.recorders.scripts.script_file import record_file
from pytest_precision.trace.cache import TraceCache
from pytest_precision.trace.remote_folder import OutFolder

pytestmark = pytest.mark.slow

LOOP = Path(__file__).with_name("loop.py")
RANKED = LOOP.with_name("ranked_loop.py")

CASTS = LOOP.parents[2] / "fixtures" / "scripts" / "casts_kept.py"

LOGGED = ("--lines", "--values", "0-3")


def record(out: Path, wrong: str, *options: str) -> Path:
    words = ["record", "--out", str(out), "--steps", "3", *options, "--", str(LOOP), wrong]
    assert main(words) == 0
    return out


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the script that clips otherwise, with its operations."""
    return record(tmp_path_factory.mktemp("recordings") / "ours", "clip", *LOGGED)


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record the right script likewise."""
    return record(tmp_path_factory.mktemp("recordings") / "theirs", "nothing", *LOGGED)


def compared(candidate: Path, reference: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["compare", str(candidate), str(reference)]) == 1
    return capsys.readouterr().out


def test_two_logs_name_the_line(
    ours: Path, theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the one with the other constants, whatever the script is started with."""
    said = compared(ours, theirs, capsys)
    line = f"loop.py:{marked(LOOP, 'clip')}"
    assert f"{line}: the reference multiplied by 0.3 here, the candidate by 100.0" in said
    assert 0 < (ours / "operations0.json").stat().st_size < 1024 * operations(ours)


def test_an_operation_too_many_is_no_missing_one(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of several steps, the next one multiplies what is made of the same gradient, by a beta."""
    halved = record(tmp_path / "halved", "halve", "--lines", "2", "--values", "0-3")
    said = compared(halved, theirs, capsys)
    line = f"loop.py:{marked(LOOP, 'halve')}: the reference does not run it on its input"
    assert f"aten.mul_.Tensor at {LOOP.relative_to(Path.cwd()).parent}/{line}" in said, said
    log = json.loads((halved / "operations0.json").read_text())
    assert log["pieces"] == 2
    assert any(len(pieces) == 2 for *_, pieces, _ in log["values"])


def operations(folder: Path) -> int:
    return len(json.loads((folder / "operations0.json").read_text())["operations"])


def test_a_test_has_the_culprit_of_two_logs(ours: Path, theirs: Path) -> None:
    """`parity.compare` finds what the command finds; recordings need no ranks."""
    ranks: object = None
    parity = Parity("test", Cell(), Settings(), ranks, TraceCache())  # type: ignore[arg-type]
    with pytest.raises(ParityError) as failure:
        parity.compare(ours, theirs)
    found = failure.value.verdict.culprit
    assert found is not None
    assert (found.kind, found.line) == ("constant", marked(LOOP, "clip"))
    assert found.file == str(LOOP.relative_to(Path.cwd()))


def test_a_tolerance_names_where_the_error_grows(
    ours: Path, theirs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values may differ then, so that none is followed, and no first wrong one is named."""
    bounded = ["--criterion", "norm(rel=1e-5)", "--criterion", "lr=bitwise()"]
    assert main(["compare", str(ours), str(theirs), *bounded]) == 1
    said = capsys.readouterr().out
    assert "first wrong value" not in said
    clip = f"called at {LOOP.relative_to(Path.cwd())}:{marked(LOOP, 'clip')}"
    assert "the error grows most, ×" in said, said
    assert clip in said


def test_without_a_log_the_command_is_named_that_makes_one(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The verdict is the same; a line says what to run."""
    said = compared(ours, record(tmp_path / "theirs", "nothing"), capsys)
    assert "first wrong value" not in said
    command = f"python -m pytest_precision record --out DIR --steps 3 --lines -- {LOOP}"
    assert f"record with: {command}" in said


def record_on_ranks(folder: str) -> None:
    """Record the loop over shards with its operations, as the command does on each rank."""
    record_file(RANKED, ("fsdp2", "right"), OutFolder(Path(folder)), 1, (), lines=1)


def test_tensors_that_more_ranks_hold_ask_for_parts_of_them(
    run_on_ranks: Callable[..., object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Whole tensors alone tell nothing of shards, so that a chance line is not named."""
    # A recording ends the process group, as that of a script which was ended before it could.
    needs = Needs(fresh=True, may_leave=("*",))
    for world_size in (2, 1):
        folder = tmp_path / f"{world_size}"
        folder.mkdir()
        run_on_ranks(world_size, record_on_ranks, str(folder), needs=needs)
    said = compared(tmp_path / "2", tmp_path / "1", capsys)
    assert "first wrong value" not in said
    assert f"record --out DIR --steps 1 --lines 2 -- {RANKED} fsdp2 right" in said


def test_a_damaged_log_is_a_damaged_recording(
    ours: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log is sealed as the other files are."""
    damaged = tmp_path / "damaged"
    shutil.copytree(ours, damaged)
    log = damaged / "operations0.json"
    log.write_text(log.read_text().replace("aten", "atem", 1))
    with pytest.raises(SystemExit, match="2"):
        main(["compare", str(damaged), str(damaged)])
    assert "damaged" in capsys.readouterr().err


def test_a_line_of_another_folder_is_one_of_here_if_it_is_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As of another commit: what a step reads again is known by the line that reads it."""
    folders = []
    for form in ("wrong", "--right"):
        folder = tmp_path / form
        folder.mkdir()
        file = shutil.copy(CASTS, folder / "train.py")
        words = ["record", "--out", str(folder / "out"), "--steps", "3", *LOGGED, "--", file, form]
        assert main([*map(str, words)]) == 0
        folders.append(folder / "out")
    stale = "is stale where aten.addmm.default at train.py:"
    assert stale in compared(folders[0], folders[1], capsys)
