"""A script is recorded as it is, and ends after the steps that were asked for."""

from __future__ import annotations

import json
import py_compile
import subprocess
import sys
import threading
import zipapp
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pytest_precision.__main__ import main
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.whole_recording import whole_recording

RecordFile = Callable[..., Path]


def of_step(trace: Trace, step: int) -> set[bool]:
    """Whether what is large was kept as values in a step."""
    moments = [moment for moment in trace.moments if moment.step == step]
    entries = [entry for moment in moments for entry in trace.entries(moment)]
    return {not entry.digest for entry in entries if entry.nbytes > 64 and entry.kind != "rng"}


def test_a_script_is_ended_after_its_steps(record: RecordFile, in_folder: Path) -> None:
    """What it would do afterwards is not done, and the folder has the steps."""
    (in_folder / "train.py").open("a").write("open('after', 'w')\n")
    trace = whole_recording("candidate", record("a", "--steps", "4")).trace
    assert [m.step for m in trace.moments if m.phase == "optimizer_step"] == [1, 2, 3, 4]
    assert not (in_folder / "after").exists()


def test_a_script_may_change_its_folder(record: RecordFile, in_folder: Path) -> None:
    """As Hydra does, before it trains."""
    text = (in_folder / "train.py").read_text()
    (in_folder / "train.py").write_text(f"import os\nos.chdir('/')\n{text}")
    assert whole_recording("candidate", record("a", "--steps", "1"))


def test_a_shorter_script_is_recorded_to_its_end(
    record: RecordFile, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is whole, and the number of steps is said."""
    folder = record("a", script=("train.py", "0.01", "2"))
    assert whole_recording("candidate", folder).cell.sequence == "train2"
    assert "train.py ended after 2 steps" in capsys.readouterr().err


def test_a_script_runs_as_main_with_its_arguments(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `python FILE ARGUMENTS` runs it, with the modules beside it."""
    (in_folder / "sub").mkdir()
    (in_folder / "sub" / "sibling.py").write_text("NAME = 'beside'\n")
    script = "import json, sys, sibling\n"
    script += "json.dump([__name__, sys.argv, sibling.NAME], open('seen', 'w'))\n"
    (in_folder / "sub" / "file.py").write_text(script)
    with pytest.raises(SystemExit):
        main(["record", "--out", "a", "--", "sub/file.py", "--out", "x", "--", "y"])
    told = " ".join(capsys.readouterr().err.split())
    assert "error: expected sub/file.py to train but got no step of a torch.optim.Optimizer" in told
    seen = json.loads((in_folder / "seen").read_text())
    assert seen == ["__main__", ["sub/file.py", "--out", "x", "--", "y"], "beside"]
    assert "beside" not in sys.argv[0]


@pytest.mark.parametrize("form", ["train.pyz", "train.pyc"])
def test_a_script_may_be_an_archive_or_compiled(
    record: RecordFile, in_folder: Path, form: str
) -> None:
    """As Python runs them: the file `__main__.py` of the one, and the code of the other."""
    if form == "train.pyz":
        (in_folder / "app").mkdir()
        (in_folder / "app" / "__main__.py").write_bytes((in_folder / "train.py").read_bytes())
        zipapp.create_archive("app", form)
    else:
        py_compile.compile("train.py", form)
    recorded = whole_recording("candidate", record("a", script=(form, "0.01", "2")))
    assert recorded.cell.sequence == "train2"


def test_a_recording_says_how_it_was_made(record: RecordFile) -> None:
    """So that two of them can be told apart, and made again."""
    manifest = whole_recording("candidate", record("a", "--steps", "2", "--values", "1")).manifest
    assert manifest is not None
    assert (manifest.script, manifest.arguments) == ("train.py", ("0.01", "9"))
    assert (manifest.steps, manifest.values, manifest.world_size) == (2, (1,), 1)
    assert manifest.versions["torch"] == torch.__version__
    assert manifest.date.startswith("20")


def test_the_revision_of_the_script_is_kept(record: RecordFile, in_folder: Path) -> None:
    """With a sign that the work tree was another."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        subprocess.run([*git, *words], cwd=in_folder, check=True)
    (in_folder / "train.py").open("a").write("\n")
    manifest = whole_recording("candidate", record("a", "--steps", "1")).manifest
    assert manifest is not None
    assert len(manifest.revision.removesuffix("-dirty")) == 40
    assert manifest.revision.endswith("-dirty")


def test_values_are_kept_of_the_steps_asked_for(
    record: RecordFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a run that is not small, digests take no room."""
    monkeypatch.setattr("pytest_precision.recorders.scripts.loop_trace.SMALL_RUN", 0)
    trace = whole_recording("candidate", record("a", "--steps", "3", "--values", "2")).trace
    assert [of_step(trace, step) for step in (0, 1, 2, 3)] == [{False}, {False}, {True}, {False}]


def test_a_small_run_keeps_all_values(record: RecordFile) -> None:
    """They take some 10 MB at most, and nobody has to ask for them."""
    trace = whole_recording("candidate", record("a", "--steps", "2")).trace
    assert [of_step(trace, step) for step in (0, 1, 2)] == [{True}, {True}, {True}]


def test_threads_of_the_process_are_not_the_scripts(
    record: RecordFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever records in a process of their own keeps it, though a thread of theirs goes on."""

    def end(status: int) -> None:
        raise AssertionError(f"the process would have ended with {status}")

    monkeypatch.setattr("os._exit", end)
    monkeypatch.setattr("pytest_precision.commands._threads.THREAD_SECONDS", 0.1)
    done = threading.Event()
    own = threading.Thread(target=done.wait)
    own.start()
    try:
        assert record("a", "--steps", "1").is_dir()
    finally:
        done.set()
        own.join()


FULL = "os.write(os.open('/dev/full', os.O_WRONLY), b'a log')"
"""What fails for want of room, and is no part of a recording."""


@pytest.mark.parametrize("ending", ["raise KeyError('own')", "sys.exit(3)", FULL])
def test_an_error_of_the_script_is_its_own(
    in_folder: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    """Its status is the command's, and what was recorded does not look whole, nor new."""
    text = (in_folder / "train.py").read_text()
    (in_folder / "train.py").write_text(
        text.replace("if step == 3:", f"if step == 2: {ending}\n    if 0:")
    )
    with pytest.raises((KeyError, SystemExit, OSError), match=r"own|3|No space left"):
        main(["record", "--out", "a", "--", "train.py", "0.01", "9"])
    with pytest.raises(ValueError, match=r"a whole recording but got a, which rank 0 of 1 has not"):
        whole_recording("candidate", Path("a"))
    with pytest.raises(SystemExit, match="2"):
        main(["record", "--out", "a", "--", "train.py", "0.01", "9"])
    assert "or delete this one if its recording was not finished" in capsys.readouterr().err


RETRYING = """
import resource
for step in range(steps):
    try:
        train(step)
    except OSError:
        hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        {}
"""

ALONE = """
for step in range(steps):
    train(step)
"""


@pytest.mark.parametrize("loop", [RETRYING.format("raise"), RETRYING.format("pass"), ALONE])
def test_a_full_disk_is_told(
    in_folder: Path,
    capsys: pytest.CaptureFixture[str],
    files_of_at_most: Callable[[int], None],
    loop: str,
) -> None:
    """Also to a loop that goes on after any error, when there is room again; else none comes."""
    text = (
        (in_folder / "train.py").read_text().replace("for step in range(steps)", "def train(step)")
    )
    (in_folder / "train.py").write_text(text + loop)
    files_of_at_most(4096)
    with pytest.raises(SystemExit, match="2"):
        main(["record", "--out", "a", "--", "train.py", "0.01", "9"])
    assert (
        "room for a recording in a but got [Errno 27] File too large; " in capsys.readouterr().err
    )
    with pytest.raises(ValueError, match="a whole recording but got a"):
        whole_recording("candidate", Path("a"))


def test_of_two_recordings_in_one_folder_the_second_is_refused(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both saw an empty folder; one began to write before the other's first forward."""
    text = (in_folder / "train.py").read_text()
    began = "open('a/rank0.bin', 'xb').write(b'of another')\nfor step"
    (in_folder / "train.py").write_text(text.replace("for step", began, 1))
    with pytest.raises(SystemExit, match="2"):
        main(["record", "--out", "a", "--", "train.py", "0.01", "9"])
    assert (
        "a folder for this recording alone but got --out=a, in which another one began "
        "rank0.bin; name another; " in capsys.readouterr().err
    )
    assert (in_folder / "a" / "rank0.bin").read_bytes() == b"of another"
    assert [path.name for path in (in_folder / "a").iterdir()] == ["rank0.bin"]


def test_a_module_of_a_package_is_recorded(record: RecordFile, in_folder: Path) -> None:
    """A file runs it as `python -m` does, and its relative imports are found."""
    (in_folder / "own").mkdir()
    (in_folder / "own" / "__init__.py").touch()
    (in_folder / "own" / "loop.py").write_text((in_folder / "train.py").read_text())
    (in_folder / "own" / "train.py").write_text("from . import loop\n")
    run = "import runpy; runpy.run_module('own.train', run_name='__main__', alter_sys=True)"
    (in_folder / "runs.py").write_text(run)
    folder = record("a", "--steps", "2", script=("runs.py", "0.01", "9"))
    assert whole_recording("candidate", folder).cell.sequence == "train2"


def test_a_script_that_exits_well_is_recorded(record: RecordFile, in_folder: Path) -> None:
    """Many end with `sys.exit(main())`."""
    (in_folder / "train.py").open("a").write("sys.exit(0)\n")
    assert whole_recording("candidate", record("a", script=("train.py", "0.01", "2")))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--out", "full", "--", "train.py"],
            "a new or empty folder but got --out=full, which has x",
        ),
        (
            ["--out", "train.py", "--", "train.py"],
            "a folder that can be made but got --out=train.py",
        ),
        (["--out", "a"], "expected a script but got none; write it after `--`"),
        (
            ["--out", "a", "train.py", "--steps", "3", "0.01"],
            "expected a script after `--` but got train.py; write `-- train.py 0.01` after the "
            "options of record",
        ),
        (
            ["--out", "a", "--", "-m", "own.train", "a b"],
            "expected a script file but got -m own.train; make a file run.py with this line: "
            "import runpy; runpy.run_module('own.train', run_name='__main__', alter_sys=True); "
            "and write `-- run.py 'a b'`",
        ),
        (["--out", "a", "--", "-mown.train"], "but got -m own.train; make a file run.py with"),
        (["--out", "a", "--", "none.py"], "expected a script file but got script='none.py'"),
        (["--out", "a", "--values", "3-1", "--", "train.py"], "expected steps such as 3 or 0,3-5"),
        (["--out", "a", "--values", "11", "--", "train.py"], "--values up to the last step, 10"),
        (
            ["--out", "a", "--values", "0-9999999999", "--", "train.py"],
            "--values up to the last step, 10, but got 11",
        ),
        (["--out", "a", "--steps", "0", "--", "train.py"], "a whole number from 1 but got '0'"),
    ],
)
def test_bad_options_are_refused(
    in_folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """With status 2, before anything runs."""
    (in_folder / "full").mkdir()
    (in_folder / "full" / "x").touch()
    with pytest.raises(SystemExit, match="2"):
        main(["record", *words])
    assert message in capsys.readouterr().err


def test_local_gradients_are_recorded_on_demand(record: RecordFile) -> None:
    """As each backward leaves them."""
    trace = whole_recording("candidate", record("a", "--steps", "1", "--see", "grad")).trace
    assert {"0.weight after microbatch0"} <= trace.dtypes()["grad"].keys()
    assert "grad" not in trace.header.unobservable


@pytest.mark.slow
def test_a_thread_of_the_script_does_not_keep_the_process(in_folder: Path) -> None:
    """It was to be ended by the lines that were cut off; the recording is whole all the same."""
    thread = "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    (in_folder / "train.py").write_text(thread + (in_folder / "train.py").read_text())
    words = ["-m", "pytest_precision", "record", "--out", "a", "--", "train.py", "0.01", "99"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=120)
    assert (done.returncode, "Thread-1 (wait) still run" in done.stderr) == (0, True)
    assert whole_recording("candidate", Path("a")).cell.sequence == "train10"


def test_files_of_the_first_rank_are_looked_at_by_it_alone(
    record: RecordFile, in_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another rank may end while the first one removes its journal."""
    gone = "import os\nos.symlink('gone', 'out/rank0.gone')\n"
    (in_folder / "train.py").write_text(gone + (in_folder / "train.py").read_text())
    monkeypatch.setenv("SLURM_PROCID", "1")
    assert record("out", "--steps", "2").is_dir()
