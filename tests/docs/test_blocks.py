"""Pages that people follow: every block is run, in its order and in one folder, as they would."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from configparser import ConfigParser
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from documents import PAGES, ROOT, Block, blocks, named, prose

from pytest_precision.__main__ import main
from pytest_precision.options import OPTIONS

NOT_RUN = 23
"""Blocks that cannot be run in a test; a new one is a decision."""

COMMITTER = {
    f"GIT_{role}_{what}": value
    for role in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "A reader"), ("EMAIL", "reader@example.org"))
}

NIGHTLY = {
    "docs/how-to/choose-a-tolerance.md": "tests/check/test_proposal_lines.py",
    "docs/how-to/compare-two-revisions.md": "tests/commands, tests/revisions/test_against.py",
    "docs/how-to/expert-parallelism.md": "docs/how-to/fsdp2.md, tests/layouts",
    "docs/how-to/sharded-optimizer.md": "tests/recorders/scripts/test_{command,locate}.py",
    "docs/how-to/torch-compile.md": "tests/recorders/scripts/test_compiled.py",
    "docs/how-to/write-a-judgement.md": "tests/plugin/test_plugins_of_others.py",
    "docs/how-to/your-own-loop.md": "README.md, tests/commands, tests/recorders/scripts",
}
"""Pages that CI leaves to the nightly run, with what does in CI what their blocks do."""

RUN = [page for page in PAGES if any(not block.mark for block in blocks(page))]
MARKED = [(page, block) for page in PAGES for block in blocks(page) if block.mark]


def in_its_time(page: Path) -> Any:
    """Leave to the nightly run the pages whose commands other tests run."""
    marks = [pytest.mark.nightly] if named(page) in NIGHTLY else []
    if named(page) == "README.md":
        marks.append(pytest.mark.long(reason="Its matrix compares Transformer Engine's layers."))
    return pytest.param(page, id=named(page), marks=marks)


def run(command: str) -> list[str]:
    """Run a command of a page; return all lines that it writes."""
    program, *words = shlex.split(command)
    if program == "pytest":
        return session(words)
    if [program, *words[:2]] == ["python", "-m", "pytest_precision"]:
        return own(words[2:])
    environment = {name: v for name, v in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment["PYTHONPATH"] = str(ROOT)
    found = subprocess.run(
        [program, *words],
        env=environment | COMMITTER,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    return found.stdout.splitlines()


def own(words: list[str]) -> list[str]:
    """Run a command of the package in this process, which has imported torch already."""
    return lines_of(lambda: main(words))


def session(words: list[str]) -> list[str]:
    """Run a session of pytest in this process, whose fork server has torch for all of them.

    pytester would forget all modules that the session imports; torch can be imported only once.
    """
    written = lines_of(lambda: pytest.main(words))
    for name, module in [*sys.modules.items()]:
        if (getattr(module, "__file__", None) or "").startswith(os.getcwd()):
            del sys.modules[name]
    return written


def lines_of(work: Callable[[], object]) -> list[str]:
    """Return what is written to both streams."""
    written = StringIO()
    with redirect_stdout(written), redirect_stderr(written), suppress(SystemExit):
        work()
    return written.getvalue().splitlines()


def commands(block: Block) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a block with the lines that the page shows of what it writes."""
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield command, shown


def expect_shown(command: str, shown: list[str], written: list[str]) -> None:
    """Look for the lines of a page in what was written, in their order.

    `…` is any text, a space any number of spaces; what pytest writes before a line is left out.
    """
    left = iter(" ".join(line.split()) for line in written)
    for line in shown:
        words = ".*".join(map(re.escape, " ".join(line.split()).split("…")))
        pattern = re.compile(f"(?:.* )?{words}")
        text = "\n".join(written)
        assert any(pattern.fullmatch(one) for one in left), f"{command}: no {line!r} in\n{text}"


def take(block: Block, names: dict[str, Any]) -> None:
    """Do what a block says: write its file, run its statements or its commands, read its keys."""
    file = re.match(r"# (\w+\.py)\n", block.text)
    if block.language == "python" and file:
        Path(file[1]).write_text(block.text)
    elif block.language == "python":
        exec(compile(block.text, "a block", "exec"), names)
    elif block.language == "console":
        for command, shown in commands(block):
            expect_shown(command, shown, run(command))
    elif block.language == "ini":
        ini = ConfigParser()
        ini.read_string(block.text)
        assert set(ini["pytest"]) <= {option.key for option in OPTIONS}


@pytest.fixture
def _a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of their own, and no option set from outside."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    for variable in os.environ:
        if variable.startswith("PRECISION_"):
            monkeypatch.delenv(variable)
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:rerunfailures")  # as of conftest's pytester
    monkeypatch.setenv("COLUMNS", "400")  # a page shows lines as they are before they are wrapped


@pytest.mark.slow
@pytest.mark.usefixtures("_a_reader")
@pytest.mark.parametrize("page", [in_its_time(page) for page in RUN])
def test_a_page_does_what_it_says(page: Path) -> None:
    """A file is written where a block begins with its name; a command writes what is shown."""
    names: dict[str, Any] = {"__name__": "a_page"}
    for block in blocks(page):
        if not block.mark:
            take(block, names)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_blocks_are_of_a_known_form(page: Path) -> None:
    """What is neither run, an excerpt nor marked is text, which no reader would type."""
    found = {(block.language, block.mark.partition(" ")[0]) for block in blocks(page)}
    assert found <= {
        *(("python", ""), ("console", ""), ("ini", ""), ("text", "")),
        *(("python", "in"), ("yaml", "in"), ("console", "not")),
    }
    assert not re.search(r"^ {4}\S", prose(page), re.MULTILINE), "a block without a fence"


def test_few_blocks_are_not_run() -> None:
    """Each says why not."""
    reasons = [block.mark for _, block in MARKED if not block.mark.startswith("in ")]
    assert all(re.fullmatch(r"not run: \S.*", reason) for reason in reasons)
    assert len(reasons) == NOT_RUN


def squeezed(code: str) -> str:
    """Return code without what a formatter chooses, which depends on the indentation."""
    return re.sub(r"\s+", "", code).replace(",)", ")")


@pytest.mark.parametrize(
    ("page", "block"), MARKED, ids=[f"{named(page)}-{block.mark}" for page, block in MARKED]
)
def test_a_block_that_is_not_run_could_be(page: Path, block: Block) -> None:
    """An excerpt is in its file as it stands; a command has a program and valid shell syntax."""
    if block.mark.startswith("in "):
        file = (ROOT / block.mark.removeprefix("in ")).read_text()
        assert squeezed(block.text) in squeezed(file)
        return
    for command, _ in commands(block):
        subprocess.run(["bash", "-n", "-c", command], check=True)
        program = shlex.split(command)[0]
        assert program in ("srun", "sbatch", "pip", "python", "pytest", "torchrun") or (
            os.access(ROOT / program, os.X_OK) or shutil.which(program)
        )
