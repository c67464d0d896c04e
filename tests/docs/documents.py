"""Pages of the documentation: where they are, and the blocks that they are made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One fenced block.

    Attributes:
        language: the first word behind the fence.
        mark: the others: empty where the block is run, `not run: REASON`, or `in FILE`.
        text: what is between the fences.
    """

    language: str
    mark: str
    text: str


def named(page: Path) -> str:
    """Return the name of a page, from the root of the repository."""
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page, in order."""
    for info, text in FENCE.findall(page.read_text()):
        language, _, mark = info.partition(" ")
        yield Block(language, mark, text)


def prose(page: Path) -> str:
    """Return the text of a page without its blocks."""
    return FENCE.sub("", page.read_text())
