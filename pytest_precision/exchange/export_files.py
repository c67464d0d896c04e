"""The two files of an exported recording: their names, and how those of this package are told."""

from __future__ import annotations

import json
import re
from pathlib import Path

from pytest_precision._destination import MAKER, Destination, head_of
from pytest_precision.errors import expected_but_got

METADATA = {"generator": MAKER}
"""What the header of an exported safetensors file says of its maker."""

_MARKED = re.compile(rb'.{8}\{"__metadata__":\{"generator":"%s"\}' % MAKER.encode(), re.DOTALL)

_UNMARKED = re.compile(rb'.{8}\{"\d+/[a-z_]+/\d+/[^"/]+/[^"]+":\{"dtype":', re.DOTALL)
"""How the exports began that had no maker: with a tensor's step, phase, rank, kind and name."""

_SIDECAR = re.compile(
    rb'\{\n "sidecar": \d+,\n "(generator": "%s"|world_size": \d+,\n "environment": \{)'
    % MAKER.encode()
)
"""How a sidecar of an export begins, now and before it named its maker."""


def is_export(head: bytes) -> bool:
    """Return whether a safetensors file that begins so was exported by this package."""
    return bool(_MARKED.match(head) or _UNMARKED.match(head))


def is_sidecar(head: bytes) -> bool:
    """Return whether a JSON file that begins so is the sidecar of an export by this package."""
    return _SIDECAR.match(head) is not None


def sidecar_of(file: Path) -> Path:
    """Return the path of the JSON sidecar that `export` writes beside a safetensors file."""
    return Path(f"{file}.json")


def files_of_export(file: Path, *, force: bool = False) -> tuple[Destination, Destination]:
    """Return where an export writes: the safetensors file, and its sidecar.

    Args:
        file: the safetensors file.
        force: see `Destination`.
    """
    return Destination(file, is_export, force), Destination(sidecar_of(file), is_sidecar, force)


def find_sidecar(file: Path) -> Path:
    """Return the path of the sidecar that describes a safetensors file.

    It has the file's name with `.json` after it or, as earlier exports had, in place of the suffix.

    Raises:
        ValueError: there are two, and nothing says which of them describes the file.
        OSError: a file cannot be read.
    """
    sidecar, earlier = sidecar_of(file), file.with_suffix(".json")
    if not earlier.is_file():
        return sidecar
    if not sidecar.is_file():
        return earlier
    if _MARKED.match(head_of(file)) or not _says_sidecar(earlier):
        return sidecar
    got = f"{sidecar.name} and {earlier.name}"
    advice = "remove the one that does not describe it"
    raise ValueError(expected_but_got(f"one sidecar of {file.name}", got, advice))


def _says_sidecar(path: Path) -> bool:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return False
    return isinstance(content, dict) and "sidecar" in content
