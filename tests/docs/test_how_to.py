"""Pages that people follow: every block is run, in its order and in one folder, as they would."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout, suppress
from io import StringIO
from pathlib import Path

import pytest

from pytest_precision.__main__ import main

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "how-to").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def run(command: str) -> list[str]:
    """Run a command of a page; return all lines that it writes."""
    program, *words = shlex.split(command)
    if [program, *words[:2]] == ["python", "-m", "pytest_precision"]:
        return own(words[2:])
    environment = {name: v for name, v in os.environ.items() if not name.startswith("PYTEST_")}
    environment["PATH"] = f"{Path(sys.executable).parent}:{environment['PATH']}"
    environment["PYTHONPATH"] = str(ROOT)
    found = subprocess.run(
        [program, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    return found.stdout.splitlines()


def own(words: list[str]) -> list[str]:
    """Run a command of the package in this process, which has imported torch already."""
    written = StringIO()
    with redirect_stdout(written), redirect_stderr(written), suppress(SystemExit):
        main(words)
    return written.getvalue().splitlines()


def commands(block: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a block with the lines that the page shows of what it writes."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, *shown = part.splitlines()
        yield command, shown


def expect_shown(command: str, shown: list[str], written: list[str]) -> None:
    """Look for the lines of a page in what was written, in their order; `…` is any text."""
    left = iter(written)
    for line in shown:
        pattern = re.compile(".*".join(map(re.escape, line.split("…"))))
        text = "\n".join(written)
        assert any(pattern.fullmatch(one) for one in left), f"{command}: no {line!r} in\n{text}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is written where a block begins with its name; a command writes what is shown."""
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(page.read_text())
    assert {language for language, _ in blocks} <= {"python", "console"}
    for language, block in blocks:
        if language == "python":
            name = re.match(r"# (\w+\.py)\n", block)
            assert name, f"a block of {page.name} without the name of its file"
            (tmp_path / name[1]).write_text(block)
        else:
            for command, shown in commands(block):
                expect_shown(command, shown, run(command))
