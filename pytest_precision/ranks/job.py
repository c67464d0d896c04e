"""Job: one call as plain data, with what its imports depend on."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_precision.ranks.code import rewriting
from pytest_precision.ranks.code.import_path import ImportPath


@dataclass(frozen=True, slots=True)
class Job:
    """What every rank of a group is asked to do once.

    Attributes:
        call: the callable with its arguments bound.
        sys_path: the caller's; pytest extends it while it collects, after ranks were started.
        directory: the caller's current one.
        rewritten: names of the modules whose asserts show their values.
        name: what messages call it.
        imports: what to import before it starts, beside the function.
        may_leave: patterns of the leaks that are none.
    """

    call: ImportPath
    sys_path: tuple[str, ...]
    directory: str
    rewritten: frozenset[str]
    name: str
    imports: tuple[ImportPath, ...] = ()
    may_leave: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        function: Callable[..., Any] | ImportPath,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
    ) -> Job:
        """The job of calling `function` from here, named after it unless a name is given.

        Raises:
            TypeError: the function has no import path, or an argument does not pickle.
        """
        call = ImportPath.of(function, "function").bind(*args, **kwargs)
        return cls(call, tuple(sys.path), os.getcwd(), rewriting.rewritten(), name or call.name)

    def enter(self) -> None:
        """Take over the caller's directory and path in this process."""
        os.chdir(self.directory)
        if sys.path != list(self.sys_path):
            sys.path[:] = self.sys_path
            importlib.invalidate_caches()
        rewriting.rewrite(self.rewritten)

    def resolve(self) -> Callable[[], Any]:
        """Import all that it needs, and return the function."""
        for path in self.imports:
            # What cannot be imported fails again where it is used, and there somebody reads why.
            with contextlib.suppress(Exception):
                path.resolve()
        return self.call.resolve()
