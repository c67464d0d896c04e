"""What docs/architecture.md says of the tree is what stands there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest
from documents import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGE = ROOT / "pytest_precision"

FILE = re.compile(r"(?:\w+/)*\w+\.(?:py|md|json)")
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


EXAMPLES: dict[str, tuple[str, ...]] = {
    "a command": ("bisect", "commands/bisect.py"),
    "an option": ("strict_isolation", "plugin/hooks.py"),
    "a layout of the package": ("any_precision_adamw", "layouts/optimizer_layouts.py"),
    "a workload of the package": ("Moe", "workloads/mixture.py"),
    "a kind of observation": ("extra_state", "engine/attributes.py"),
    "a check of the audit": ("output-rounded", "auditing/checks/policies.py"),
    "a criterion": ("Ulp", "parity/compare/bounds.py"),
    "an operation of a sequence": ("'restart'", "matrix/sequence.py", "load"),
    "a number format": ("nvfp4_1d_row_4over6", "formats/nvfp4.py", "nvfp4"),
    "a precision": ("fp8_block", "matrix/precisions.py"),
    "what a job must not leave changed": ("umask", "ranks/state/fingerprint.py"),
}
"""One that is there for each row, by a name that means nothing else, and its own module.

A name in quotes is that of a text: the word is one of code, too. A third entry is what some modules
of the row call it: the method of an operation, the module of a format.
"""

WITHOUT_EXAMPLE = {
    "a judgement that needs neither a reference nor a rule",
    "a defect or a variation of the catalogue",
    "a figure of the package",
    "a gate of the package",
    "a judgement",
    "a reporter",
    "a framework whose loop is a script",
    "a log of the ranks",
}
"""Rows without an example: the first is not of the package, figures and logs have readers beside
what the row names, and of a framework few need all."""


@cache
def names_in_code() -> dict[str, set[str]]:
    """Return every name and every text in the code of each module."""
    return {
        str(file.relative_to(PACKAGE)): set(names_of(ast.parse(file.read_text())))
        for file in PACKAGE.rglob("*.py")
    }


def names_of(tree: ast.AST) -> Iterator[str]:
    """Yield every name and every text of a tree; a longer text, such as a docstring, is whole.

    A text is yielded as it is and in quotes.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            yield repr(node.value)
        for value in vars(node).values():
            yield from [value] if isinstance(value, str) else []


def test_every_addition_has_an_example() -> None:
    """Or is known to have none."""
    rows = {what for what, _ in table("To add something, touch")}
    assert rows == EXAMPLES.keys() | WITHOUT_EXAMPLE


@pytest.mark.parametrize("what", EXAMPLES)
def test_what_is_there_touches_what_the_row_says(what: str) -> None:
    """Each module, page and test of the row has the name, and no other module of the package."""
    name, own, *also = EXAMPLES[what]
    row: list[str] = re.findall(r"`([^`]+)`", dict(table("To add something, touch"))[what])
    said = {one.removeprefix("pytest_precision/") for one in row if FILE.fullmatch(one)}
    known = names_in_code()
    assert {file for file, names in known.items() if name in names} <= {own, *said}
    forms = {*map(squeezed, (name, *also))}
    for file in said & known.keys():
        assert forms & {*map(squeezed, known[file])}, file
    for page in said - known.keys():
        text = (ROOT / ("" if "/" in page else "docs/reference") / page).read_text()
        assert squeezed(name) in squeezed(text), page


def squeezed(text: str) -> str:
    """Return a text as names are compared: an option has hyphens, and a class has capitals."""
    return text.lower().replace("-", "_").strip("'")


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
