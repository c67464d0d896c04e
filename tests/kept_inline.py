"""A cache of traces that keeps what ranks in the process of the tests have recorded."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from pathlib import Path

from pytest_precision.ranks.code.module_files import ModuleFile
from pytest_precision.trace.cache import TraceCache


class KeptInline(TraceCache):
    """Keeps references of this process for later checks.

    A session keeps none of inline ranks, since a test may change what its own process computes. No
    test that is given this cache does. What a reference is kept by is that of a session: both
    layouts, workload, cell and all that they need.
    """

    def keep(
        self, key: Hashable, folder: Path, modules: Iterable[ModuleFile], *, outlasts_check: bool
    ) -> None:
        """Keep a reference for all later checks, whatever ranks have recorded it."""
        super().keep(key, folder, modules, outlasts_check=True)
