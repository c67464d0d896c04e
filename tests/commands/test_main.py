"""The command line: what it offers, under which names, and what it costs to ask."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import pytest_precision
from pytest_precision.__main__ import COMMANDS, main
from pytest_precision.commands import say
from pytest_precision.parity.compare.calls import CALLS
from pytest_precision.trace.manifest import started_by
from pytest_precision.version import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest requires there


REPORT_COMMANDS = [
    ("report", name)
    for name in ("merge", "html", "summary", "annotations", "sarif", "history", "counts", "compare")
]


def test_help_is_fast() -> None:
    """It names the commands, and imports no torch."""
    code = "import sys; from pytest_precision.__main__ import main\ntry: main(['--help'])\n"
    code += "finally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("record", "compare", "init"):
        assert f"\n    {command} " in done.stdout


def test_the_version_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """As a report of a bug needs it."""
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"pytest-precision {__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_the_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And their options; the name is that of the program, which a shell can complete."""
    with pytest.raises(SystemExit) as ended:
        main(["--print-completion", shell])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for word in ("pytest-precision", "compare", "bisect", "--criterion"):
        assert word in printed


@pytest.mark.parametrize(
    "command",
    [*((name,) for name in (*COMMANDS, "import") if name != "report"), *REPORT_COMMANDS],
    ids=" ".join,
)
def test_every_help_names_the_exit_statuses(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """So that a script that calls it need not try them."""
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.search("[Ee]xit status 0.* 2 if|[Ee]xit status 1.* 2 if", text)


@pytest.mark.parametrize(("ranks", "launcher"), [(1, "python"), (8, "torchrun --nproc-per-node 8")])
def test_a_command_is_repeated_on_as_many_ranks(ranks: int, launcher: str) -> None:
    """What is offered to paste starts them, too."""
    assert " ".join(started_by(ranks)) == f"{launcher} -m pytest_precision"


def test_an_unknown_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """With the known ones."""
    with pytest.raises(SystemExit, match="2"):
        main(["recrod"])
    assert "invalid choice: 'recrod' (choose from" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ("diff", ""),
        ("diff", " "),
        ("diff", "--python", ""),
        ("diff", "--link", ""),
        ("diff", "--link="),
        ("bisect", "", "HEAD"),
        ("bisect", "HEAD~1", ""),
        ("record", "--out", ""),
        ("record", "--out="),
        ("record", "--out", "new", "--only", ""),
        ("record", "--out", "new", "--steps", ""),
        ("record", "--out", "new", "--values="),
        ("record", "--out", "new", "--te="),
        ("compare", "", "reference"),
        ("compare", "candidate", ""),
        ("compare", "candidate", "reference", "--criterion", ""),
        ("compare", "candidate", "reference", "--report="),
        ("export", "", "--out", "new"),
        ("export", "recording", "--out="),
        ("import", "file", "--out", ""),
        ("init", ""),
        ("init", "folder", "--script="),
        ("report", "merge", "--out", "", "one"),
        ("report", "page", ""),
        ("report", "compare", "old", ""),
        ("audit", ""),
        ("audit", "module:function", "--format="),
    ],
    ids=shlex.join,
)
def test_an_empty_word_is_no_default(
    in_folder: Path, capsys: pytest.CaptureFixture[str], words: Sequence[str]
) -> None:
    """It is that of a variable which was never set, in every place, and nothing is made."""
    before = {*in_folder.iterdir()}
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--", "train.py"])
    said = capsys.readouterr().err
    assert re.search(r"expected a value for .* but got '\s?'; leave it out for the default;", said)
    assert {*in_folder.iterdir()} == before


def test_a_script_may_have_empty_arguments(
    in_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What follows `--` is the script's own."""
    with pytest.raises(SystemExit, match="2"):
        main(["record", "--out", "new", "--", "none.py", ""])
    assert "expected a value" not in capsys.readouterr().err


def test_a_terminal_may_lack_a_character(monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets the escape sequence, and no difference is taken for what cannot be compared."""
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii"))
    say("1.5 × the reference")
    assert printed.getvalue() == b"1.5 \\xd7 the reference\n"


def test_it_is_installed_under_the_name_of_the_package() -> None:
    """As `pytest-precision`."""
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert EntryPoint("", project["scripts"]["pytest-precision"], "").load() is main


def test_every_criterion_can_be_written() -> None:
    """Those that a test can import."""
    home = "pytest_precision.parity.compare.calls"
    exported = {name: getattr(pytest_precision, name) for name in pytest_precision.__all__}
    found = {name for name, one in exported.items() if getattr(one, "__module__", "") == home}
    assert found == {*CALLS}
