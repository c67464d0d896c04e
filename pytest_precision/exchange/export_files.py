"""The two files of an exported recording: their names, and how those of this package are told."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_precision._destination import MAKER, Destination

METADATA = {"generator": MAKER}
"""What the header of an exported safetensors file says of its maker."""

_TENSORS = re.compile(rb'.{8}\{"__metadata__":\{"generator":"%s"\}' % MAKER.encode(), re.DOTALL)
"""How an exported safetensors file begins."""

_SIDECAR = re.compile(rb'\{\n "sidecar": \d+,\n "generator": "%s"' % MAKER.encode())
"""How the sidecar of an export begins."""


def sidecar_of(file: Path) -> Path:
    """Return the path of the JSON sidecar of a safetensors file."""
    return Path(f"{file}.json")


def files_of_export(file: Path, *, force: bool) -> tuple[Destination, Destination]:
    """Return where an export writes: the safetensors file, and its sidecar.

    Args:
        file: the safetensors file.
        force: see `Destination`.
    """
    return (
        Destination(file, lambda head: bool(_TENSORS.match(head)), force),
        Destination(sidecar_of(file), lambda head: bool(_SIDECAR.match(head)), force),
    )
