"""What docs/architecture.md says of the tree is what stands there."""

from __future__ import annotations

import re

import pytest
from documents import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGE = ROOT / "pytest_precision"

FILE = re.compile(r"(?:\w+/)*\w+\.(?:py|md)")
NAME = re.compile(r"@?\w+")


def table(heading: str) -> list[tuple[str, str]]:
    """Return the rows of the table below a heading: what is spoken of, and what is said of it."""
    text = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| ")]
    return [(left.strip(), right.strip()) for left, right in rows[1:] if "---" not in left]


def texts(words: str) -> list[str]:
    """Return the files that a row names, each of which must exist."""
    found, folder = [], "docs/reference"
    for name in re.findall(r"`([^`]+)`", words):
        if not FILE.fullmatch(name):
            continue
        places = [ROOT / name, PACKAGE / name, ROOT / folder / name]
        files = [place for place in places if place.is_file()]
        assert files, f"{name} is neither in the package nor in {folder}"
        found.append(files[0].read_text())
    return found


@pytest.mark.parametrize(("what", "words"), table("To add something, touch"))
def test_what_an_addition_touches_is_there(what: str, words: str) -> None:
    """Every file of the row exists, and every name of the row stands in one of them."""
    known = texts(words)
    for name in re.findall(r"`([^`]+)`", words):
        if NAME.fullmatch(name) and not (PACKAGE / name).is_dir():
            assert any(name in text for text in known), f"{name}: none of the files has it"


def test_every_room_has_a_row() -> None:
    """Each folder of the package stands in the table of the tree, and no other."""
    rooms = {f"{path.name}/" for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    named = {name for left, _ in table("The tree") for name in re.findall(r"`([^`]+)`", left)}
    assert rooms <= named
    for name in named:
        assert (PACKAGE / name).is_dir(), name


def test_every_file_of_the_page_is_there() -> None:
    """A file is named by its path, from the root or the package, or by its name alone."""
    named = {name for name in re.findall(r"`([^`]+)`", PAGE) if FILE.fullmatch(name)}
    assert len(named) > 30
    alone = {path.name for path in PACKAGE.rglob("*.py")}
    places = (ROOT, PACKAGE, ROOT / "docs/reference")
    there = {name for name in named if any((place / name).is_file() for place in places)}
    assert named - there <= alone
