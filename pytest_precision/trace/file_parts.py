"""Send what is added to growing files as parts, and put the parts of a file together again.

Object stores append nothing. So what a rank has added since the last time is sent as a file of its
own, `rank0.journal.part000002`, until the whole file takes the place of its parts.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from itertools import takewhile
from pathlib import Path

_PART = re.compile(r"(.+)\.part(\d{6,})")

GROWING = ("*.bin", "*.journal")
"""Files that a rank adds to as it records: a block of the second tells how to read the first."""


class FileParts:
    """What was sent of the growing files of a folder.

    Args:
        folder: of this machine.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sent: dict[str, int] = {}
        self._parts: dict[str, list[str]] = {}

    @property
    def names(self) -> list[str]:
        """Return the names of all parts that were sent."""
        return [name for parts in self._parts.values() for name in parts]

    def added(self) -> Iterator[tuple[str, bytes]]:
        """Yield the name and the bytes of each part to send; one that was sent is taken next."""
        for pattern in GROWING:
            for path in sorted(self._folder.glob(pattern)):
                begun = self._sent.get(path.name, 0)
                with path.open("rb") as file:
                    file.seek(begun)
                    content = file.read()
                if content:
                    parts = self._parts.setdefault(path.name, [])
                    name = f"{path.name}.part{len(parts):06}"
                    yield name, content
                    parts.append(name)
                    self._sent[path.name] = begun + len(content)


def pieces_of(names: Collection[str]) -> dict[str, list[str]]:
    """Return of each file what it is read from: itself, or its parts up to the first missing one.

    Args:
        names: of all files in a folder.
    """
    wholes = {name: [name] for name in names if not _PART.fullmatch(name)}
    parts: dict[str, dict[int, str]] = {}
    for name in names:
        match = _PART.fullmatch(name)
        if match is not None and match[1] not in wholes:
            parts.setdefault(match[1], {})[int(match[2])] = name
    return wholes | {
        whole: [*takewhile(bool, (numbered.get(place, "") for place in range(len(numbered))))]
        for whole, numbered in parts.items()
        if 0 in numbered
    }
