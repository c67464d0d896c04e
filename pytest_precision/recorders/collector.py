"""Keep Python's garbage collector from running while a recorder reads thousands of tensors."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Make no search for cycles inside the context: what a recorder makes there has none.

    A search is made after every so many new objects, and it looks at all objects of the run.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
