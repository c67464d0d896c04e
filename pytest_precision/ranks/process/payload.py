"""Payload: a value on its way, in the message where it is small and in a file where it is not."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SMALL = 32_000
"""Bytes that fit into a socket's buffer, so that sending them waits for nobody. Most jobs and
results are smaller; rewriting a file for each of them costs milliseconds on a journalled disk."""


@dataclass(frozen=True, slots=True)
class Payload:
    """A pickled value, or the name of the file that holds it."""

    content: bytes | str

    @classmethod
    def of(cls, pickled: bytes, file: Path) -> Payload:
        """The payload of a pickled value, which goes into `file` where it is large."""
        if len(pickled) <= SMALL:
            return cls(pickled)
        file.write_bytes(pickled)
        return cls(str(file))

    def unpack(self) -> Any:
        """The value; what the unpickling raises passes through."""
        if isinstance(self.content, bytes):
            return pickle.loads(self.content)
        return pickle.loads(Path(self.content).read_bytes())
