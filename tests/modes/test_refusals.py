"""A process of a launch that cannot hold a rank says why, and nobody waits for it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import launches
import pytest

SUITE = """
import os

import pytest


@pytest.mark.world_size(2)
def test_ranks(ranks):
    assert ranks.run(os.getpid)
"""

ON_ONE = "\nif os.environ.get('SLURM_PROCID', os.environ.get('RANK')) == '{rank}':\n    {does}\n"


def run(folder: Path, mode: str, *args: str) -> launches.Session:
    return launches.run(folder, mode, "-p", "no:cacheprovider", "--precision-device=cpu", *args)


@pytest.mark.parametrize(
    ("mode", "options"),
    [("Slurm", ["-x"]), pytest.param("torchrun", [], marks=pytest.mark.nightly)],
)
def test_an_import_error_of_one_process(tmp_path: Path, mode: str, options: list[str]) -> None:
    """The first process stops with the other one's traceback, also if that one stops early."""
    (tmp_path / "test_broken.py").write_text(
        "import os\n" + ON_ONE.format(rank=1, does="import no")
    )
    (tmp_path / "test_suite.py").write_text(SUITE)
    asked = time.monotonic()
    ended = run(tmp_path, mode, *options)
    assert time.monotonic() - asked < launches.SECONDS
    assert ended.statuses[0] != 0
    assert "ERROR: rank 1, process " in ended.output
    assert "ModuleNotFoundError: No module named 'no'" in ended.output


@pytest.mark.parametrize(
    "file", ["test_suite.py", pytest.param("conftest.py", marks=pytest.mark.nightly)]
)
def test_an_error_of_the_first_process(tmp_path: Path, file: str) -> None:
    """The other one leaves at once, without a word: the first one has said it."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    with (tmp_path / file).open("a") as text:
        text.write("import os\n" + ON_ONE.format(rank=0, does="import no"))
    ended = run(tmp_path, "Slurm")
    assert ended.statuses == [{"conftest.py": 4, "test_suite.py": 2}[file], 0], ended.output
    assert ended.output.count("ModuleNotFoundError: No module named 'no'") == 1


def test_a_bad_marker_of_one_process(tmp_path: Path) -> None:
    """Its cells cannot be made there, and the first process says where and why."""
    (tmp_path / "test_suite.py").write_text(
        SUITE
        + "\nPRECISIONS = ['fp32']\n"
        + ON_ONE.format(rank=1, does="PRECISIONS = ['fp31']")
        + "@pytest.mark.precision_matrix(precision=PRECISIONS)\ndef test_cell(cell): pass\n"
    )
    ended = run(tmp_path, "Slurm", "--precision-matrix")
    assert ended.statuses[0] != 0
    assert "ERROR: rank 1, process " in ended.output
    assert "test_suite.py::test_cell" in ended.output
    assert "'fp31'" in ended.output


def test_a_bad_option_of_one_process(tmp_path: Path) -> None:
    """It reaches the first process before pytest knows of any test there."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    (first, ours), (second, theirs) = launches.commands("Slurm", "-p", "no:cacheprovider")
    processes = [(first, ours), ([*second, "--precision-timeout=soon"], theirs)]
    with launches.started(tmp_path, processes) as (ended, _):
        pass
    assert ended.statuses == [4, 4]
    lines = [line for line in ended.output.splitlines() if "soon" in line]
    assert len(lines) == 2, ended.output
    assert sum("ERROR: rank 1, process" in line for line in lines) == 1


def test_a_process_that_cannot_be_called(tmp_path: Path) -> None:
    """Both say why: its node does not know the first one's name."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    (first, ours), (second, theirs) = launches.commands("Slurm on two nodes")
    processes = [(first, ours), (second, {**theirs, "MASTER_ADDR": "unknown.invalid"})]
    with launches.started(tmp_path, processes) as (ended, _):
        pass
    assert ended.statuses == [4, 1], ended.output
    assert ended.output.count("not known") == 2
    assert "ERROR: rank 1, process" in ended.output


def test_variables_that_a_launcher_has_left(tmp_path: Path) -> None:
    """Who waits for processes that nobody has started is told so, and what to do."""
    (tmp_path / "test_suite.py").write_text(SUITE)
    [alone, _] = launches.commands("Slurm", "-p", "no:cacheprovider")
    seen = ""
    with launches.started(tmp_path, [alone]) as (_, [process]):
        until = time.monotonic() + launches.SECONDS
        while "precision: waiting" not in seen and time.monotonic() < until:
            time.sleep(0.2)
            seen = (tmp_path / "output").read_text()
        process.kill()
    [line] = [line for line in seen.splitlines() if line.startswith("precision: waiting")]
    assert "waiting up to 300 s for rank 1 of 2 of Slurm to come" in line
    assert "where Slurm did not start this process, unset SLURM_STEP_NUM_TASKS" in line


@pytest.mark.parametrize(("name", "value"), [("RANK", "abc"), ("WORLD_SIZE", "")])
def test_a_variable_that_is_no_number(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """It is a usage error, unless what is missing means that there is no launch."""
    for variable in ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(variable, "1")
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv(name, value)
    pytester.makepyfile("def test(): pass")
    ended = pytester.runpytest_inprocess()
    if value:
        assert ended.ret == pytest.ExitCode.USAGE_ERROR
        ended.stderr.fnmatch_lines([f"ERROR: expected a number *{name}='abc'; unset {name} where*"])
    else:
        assert ended.ret == 0
    assert "INTERNALERROR" not in os.linesep.join(ended.outlines)
