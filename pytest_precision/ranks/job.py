"""A function call as plain data, with everything that its imports depend on."""

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
from pytest_precision.ranks.code.pytest_imports import import_collected
from pytest_precision.ranks.code.relocation import relocation_of_process


@dataclass(frozen=True, slots=True)
class Job:
    """A function call for every rank: what to import, where to run, what it may leave changed.

    Attributes:
        call: the callable with its arguments bound.
        sys_path: the caller's `sys.path`, which pytest extends during collection, after ranks have
            started.
        directory: the caller's current directory.
        rewritten: names of the modules whose asserts are rewritten to show their values.
        name: name of the job in messages.
        collected: what pytest imported before it ran the test, which ranks import before all else.
        imports: what to import before the job starts, in addition to the function.
        may_leave: patterns of changes that do not count as leaks.
        warn_only: whether operators without a deterministic algorithm run, with a warning.
    """

    call: ImportPath
    sys_path: tuple[str, ...]
    directory: str
    rewritten: frozenset[str]
    name: str
    collected: tuple[ImportPath, ...] = ()
    imports: tuple[ImportPath, ...] = ()
    may_leave: tuple[str, ...] = ()
    warn_only: bool = False

    @classmethod
    def of(
        cls,
        function: Callable[..., Any] | ImportPath,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
    ) -> Job:
        """Return a job that calls `function` with these arguments on every rank.

        The job's name in messages is that of the function by default.

        Raises:
            TypeError: the function has no import path, or an argument does not pickle.
        """
        call = ImportPath.of(function, "function").bind(*args, **kwargs)
        return cls(call, tuple(sys.path), os.getcwd(), rewriting.rewritten(), name or call.name)

    def enter(self) -> None:
        """Set the working directory and `sys.path` of this process to those of the job's sender."""
        moves = relocation_of_process()
        os.chdir(self.directory if moves is None else moves.folder_of(self.directory))
        path = list(self.sys_path) if moves is None else moves.import_path(self.sys_path)
        if sys.path != path:
            sys.path[:] = path
            importlib.invalidate_caches()
        rewriting.rewrite(self.rewritten)

    def import_collected(self) -> bool:
        """Import what pytest imported before the test; return whether it was not there before.

        Raises:
            ImportError: a module cannot be imported here; the message has its file.
        """
        imported = import_collected(self.collected)
        if imported:  # they may have changed both
            self.enter()
        return imported

    def resolve(self) -> Callable[[], Any]:
        """Import the job's modules, and return its function with the arguments bound."""
        for path in self.imports:
            # An import that fails here fails again where it is used, where the error is reported.
            with contextlib.suppress(Exception):
                path.resolve()
        return self.call.resolve()
