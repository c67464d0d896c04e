"""Payload: a value to send; a small one is in the message itself, a large one in a file."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMALL = 32_000
"""Number of bytes that fit into a socket's buffer, so that sending them never waits. Most jobs and
results are smaller; rewriting a file for each of them costs milliseconds on a journalled disk."""


@dataclass(frozen=True, slots=True)
class Payload:
    """A pickled value, or the name of the file that holds it."""

    content: bytes | str

    @classmethod
    def of(cls, pickled: bytes, file: Path) -> Payload:
        """Return the payload of a pickled value; write a large value to `file`."""
        if len(pickled) <= SMALL:
            return cls(pickled)
        file.write_bytes(pickled)
        return cls(str(file))

    def unpack(self) -> Any:
        """Return the value; an exception of its unpickling passes through."""
        if isinstance(self.content, bytes):
            return pickle.loads(self.content)
        return pickle.loads(Path(self.content).read_bytes())
