"""Import the user's modules from their source where bytecode may be that of an earlier source.

Python compares size and seconds of a source with those that its bytecode names, and a file that is
written anew may have both.
"""

from __future__ import annotations

import os
from importlib.machinery import SourceFileLoader
from importlib.util import cache_from_source
from typing import Any

from pytest_precision.ranks.code.installed import is_installed

_status = SourceFileLoader.path_stats


def distrust_bytecode() -> None:
    """Have imports of this process read the source where bytecode is not newer than it."""
    SourceFileLoader.path_stats = _status_of_current  # type: ignore[method-assign, assignment]


def is_stale(source: str, bytecode: str) -> bool:
    """Return whether bytecode of the user's code may be that of an earlier source."""
    try:
        status = os.stat(source)
        compiled = os.stat(bytecode).st_mtime_ns
    except OSError:  # one of them is missing
        return False
    written = max(status.st_mtime_ns, status.st_ctime_ns)  # nobody sets the latter back
    return compiled <= written and not is_installed(source)


def _status_of_current(loader: SourceFileLoader, path: str) -> Any:
    """Return the size and time of a source that its bytecode must name.

    Raises:
        OSError: it may be stale; the loader then compiles the source, and writes no bytecode.
    """
    status = _status(loader, path)
    if is_stale(path, cache_from_source(path)):
        raise FileNotFoundError(path)
    return status
