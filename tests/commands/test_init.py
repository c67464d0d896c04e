"""The first test runs as it is, and is green or red for a reason."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import in_this_process  # noqa: F401
import pytest

from pytest_precision.__main__ import main
from pytest_precision.commands.init import NAME

OPTIONS = ("--precision-matrix", "--precision-ranks=inline", "--precision-device=cpu")


def changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


@pytest.mark.slow
def test_the_loop_that_is_written_is_green_and_can_be_red(pytester: pytest.Pytester) -> None:
    """As its docstring says."""
    assert main(["init"]) == 0
    red = changed(Path(NAME).read_text(), "betas=(0.9,", "betas=(0.9 if foreach else 0.8,")
    Path("test_red.py").write_text(red)
    run = pytester.runpytest_inprocess(*OPTIONS)
    run.assert_outcomes(passed=1, failed=1)
    run.stdout.fnmatch_lines(["*hyper differs before the first step: betas.0 of 0.weight is 0.9*"])


@pytest.mark.slow
def test_a_script_that_repeats_itself_is_green(in_folder: Path, pytester: pytest.Pytester) -> None:
    """Wherever it lies; `docs/how-to/your-own-loop.md` has a red one."""
    assert main(["init", "--script", str(in_folder / "train.py")]) == 0
    text = changed(Path(NAME).read_text(), "IS = []", "IS = ['0.01', '9']")
    Path(NAME).write_text(changed(text, "CHANGED = []", "CHANGED = ['0.01', '9']"))
    pytester.runpytest_inprocess(*OPTIONS).assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "name", ['a"""b.py', "a\\N.py", "a{b}.py", "é\udcff.py", "a\nb.py", "a'.py"]
)
def test_a_script_may_have_any_name(in_folder: Path, name: str) -> None:
    """What is written is a test that says the name, and code of nobody else's is in it."""
    (in_folder / name).touch()
    assert main(["init", "--script", name]) == 0
    doc, *imports, script, _, _, _, _ = ast.parse(Path(NAME).read_text("utf-8")).body
    assert f"Do two command lines of {name} compute" in ast.literal_eval(ast.unparse(doc))
    assert [type(one) for one in imports] == [ast.Import, ast.Import, ast.ImportFrom, ast.Import]
    assert f"parent / {name!r}" in ast.unparse(script)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["."], f"but got {NAME} (File exists); name another folder; nothing is overwritten"),
        (["none"], f"but got none/{NAME} (No such file or directory)"),
        (["--script", "none.py"], "expected a file but got --script='none.py'"),
    ],
)
def test_nothing_is_overwritten(
    in_folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    """Nor is anything written that could not run."""
    (in_folder / NAME).write_text("mine")
    with pytest.raises(SystemExit, match="2"):
        main(["init", *words])
    assert message in capsys.readouterr().err
    assert [p.name for p in in_folder.rglob("*.py")] == [NAME, "train.py"]
    assert (in_folder / NAME).read_text() == "mine"


RACE = """
import pathlib, sys
from pytest_precision.__main__ import main

def audited(event, about):
    if event == "os.link":
        pathlib.Path(NAME).write_text("mine")

sys.addaudithook(audited)
main(["init"])
"""


def test_a_file_that_is_made_meanwhile_is_not_overwritten(in_folder: Path) -> None:
    """Another process makes it right before this one gives its file that name."""
    race = f"NAME = {NAME!r}\n{RACE}"
    found = subprocess.run(
        [sys.executable, "-c", race], cwd=in_folder, capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, "(File exists); name another" in found.stderr) == (2, True)
    assert {p.name for p in in_folder.glob("test_*")} == {NAME}
    assert (in_folder / NAME).read_text() == "mine"


def test_what_cannot_be_written_whole_is_not_there(
    capsys: pytest.CaptureFixture[str], files_of_at_most: Callable[[int], None]
) -> None:
    """So that the command can be given again, where there is room."""
    files_of_at_most(100)
    with pytest.raises(SystemExit, match="2"):
        main(["init"])
    assert f"{NAME} (File too large)" in capsys.readouterr().err
    assert not Path(NAME).exists()
