"""Source: what a report quotes and names, whatever has become of the file."""

from __future__ import annotations

import linecache
from pathlib import Path

import pytest
import torch

from pytest_precision.probes.lines.explain.source_lines import WIDEST, lines_around
from pytest_precision.probes.lines.explain.worded import shown_file


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A file of ten lines."""
    path = tmp_path / "train.py"
    path.write_text("".join(f"line {n}\n" for n in range(1, 11)))
    return path


@pytest.mark.parametrize(
    ("line", "first", "last"), [(5, 2, 8), (1, 1, 4), (10, 7, 10), (0, 0, 0), (11, 0, 0)]
)
def test_three_lines_above_and_below(script: Path, line: int, first: int, last: int) -> None:
    """As far as the file has them; nothing for a line that it has not."""
    numbers = range(first, last + 1) if first else ()
    assert lines_around(str(script), line) == tuple((n, f"line {n}") for n in numbers)


def test_what_stands_in_the_file_now_is_quoted(script: Path) -> None:
    """And not what Python has kept of an earlier look."""
    assert lines_around(str(script), 1)[0].text == "line 1"
    script.write_text("a longer line than before\n")
    assert lines_around(str(script), 1)[0].text == "a longer line than before"


def test_a_file_that_is_gone_has_no_lines(script: Path) -> None:
    """Nor has code that was never in one."""
    script.unlink()
    assert lines_around(str(script), 1) == ()
    assert lines_around("<string>", 1) == ()


@pytest.mark.parametrize(
    "name", ["id_rsa", ".env", "key.pem", "train.py.txt", "nul\0.py", "py", "<py"]
)
def test_what_is_no_source_is_not_quoted(tmp_path: Path, name: str) -> None:
    """The recording of others names any file, and a report with its lines leaves this machine."""
    if "\0" not in name:
        (tmp_path / name).write_text("secret\n")
    assert lines_around(str(tmp_path / name), 1) == ()


def test_code_that_a_tool_has_registered_has_lines() -> None:
    """As torch.fx and notebooks do for what they generate."""
    lines = ["x = 1\n", "y = 2\n"]
    linecache.cache["<generated>"] = (len("".join(lines)), None, lines, "<generated>")
    assert lines_around("<generated>", 2) == ((1, "x = 1"), (2, "y = 2"))


def test_bytes_that_are_no_text(script: Path) -> None:
    """They are shown as such, and the lines around them as they are."""
    script.write_bytes(b"good\n\xff\xfe bad\ngood\n")
    assert lines_around(str(script), 1) == ((1, "good"), (2, "\ufffd\ufffd bad"), (3, "good"))


def test_a_long_line_is_cut(script: Path) -> None:
    """Generated code may have 10,000 characters in one line."""
    script.write_text("x" * 10_000 + "\n")
    assert lines_around(str(script), 1) == ((1, "x" * WIDEST + "…"),)


def test_a_file_of_the_project_is_named_from_its_root(script: Path, tmp_path: Path) -> None:
    """In any folder of it."""
    assert shown_file(str(script), tmp_path) == ("train.py", False)
    assert shown_file(str(tmp_path / "a" / "b.py"), tmp_path) == ("a/b.py", False)


def test_installed_code_is_named_as_it_is_imported(tmp_path: Path) -> None:
    """Wherever it lies: also below the root of the project, as in its virtual environment."""
    folder = Path(torch.__file__).parents[1]
    for root in (tmp_path, folder.parent):
        assert shown_file(torch.__file__, root) == ("torch/__init__.py", True)
    assert shown_file("/far/lib/site-packages/torch/a.py", tmp_path) == ("torch/a.py", True)


def test_no_folder_of_the_machine_is_named(script: Path, tmp_path: Path) -> None:
    """Outside of the project the packages that a file lies in count, else its name alone."""
    root = tmp_path / "project"
    assert shown_file(str(script), root) == ("train.py", True)
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").touch()
    assert shown_file(str(inner / "a.py"), root) == ("package/inner/a.py", True)
    assert shown_file("<string>", root) == ("<string>", True)
