"""Fragments of the changelog become lines of `CHANGELOG.md` by the project's own configuration."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT

FRAGMENT = re.compile(r"(\d+|\+[\w-]+)\.(added|changed|deprecated|fixed)\.md")


def test_each_fragment_has_a_kind() -> None:
    """A file of another name would never be read."""
    names = {file.name for file in (ROOT / "changelog.d").iterdir()}
    fragments = names - {"README.md", "template.md.jinja"}
    assert {name for name in fragments if not FRAGMENT.fullmatch(name)} == set()


@pytest.mark.slow
def test_fragments_become_lines_of_the_unreleased_section(tmp_path: Path) -> None:
    """By kind, above what stands there, and the files are gone."""
    for name in ("CHANGELOG.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    folder = tmp_path / "changelog.d"
    folder.mkdir()
    shutil.copy(ROOT / "changelog.d" / "template.md.jinja", folder)
    (folder / "7.added.md").write_text("A new *option*.\n")
    (folder / "+words.fixed.md").write_text("A message.\n")
    build = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", "0.1.0"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    unreleased = (tmp_path / "CHANGELOG.md").read_text().partition("\n## Unreleased\n")[2]
    assert "### Added\n\n- A new *option*. ([#7](https://" in unreleased.partition("#### ")[0]
    assert "### Fixed\n\n- A message.\n" in unreleased.partition("#### ")[0]
    assert [file.name for file in folder.iterdir()] == ["template.md.jinja"]
