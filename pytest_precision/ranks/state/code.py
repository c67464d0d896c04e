"""Code: functions and classes that all jobs of a process compute with, and their replacements.

The code of torch is watched where others patch it. The user's own modules are watched with their
data: all modules whose file is not installed code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import is_
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.distributed
import torch.distributed.nn
import torch.nn.parallel
import torch.optim
import torch.utils.checkpoint

from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.code.installed import users_file
from pytest_precision.ranks.state.copies import Copier
from pytest_precision.ranks.state.definitions import is_torchs
from pytest_precision.ranks.state.leaks import Leak
from pytest_precision.ranks.state.namespaces import Namespace

COMPUTING = (
    torch.Tensor,
    torch.autograd.Function,
    torch.nn.Module,
    torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler,
)
"""Classes that are watched, with their subclasses in these modules."""


class Code:
    """The code and module data of this process, to find what a job changes in them."""

    def __init__(self) -> None:
        self._torch = _Unchanging(_torchs())
        self._users: dict[str, list[Namespace]] = {}
        self._known: set[str] = set()
        self.take_in()

    def take_in(self) -> None:
        """Add the user's modules that were imported since the last call."""
        for name, module in self._new():
            self._users[name] = list(_namespaces(name, module))
        self._known.update(sys.modules)

    def late(self) -> tuple[ImportPath, ...]:
        """Return the user's modules that are new since `take_in`, whose initial data is unknown."""
        return tuple(ImportPath(name, "", users_file(module)) for name, module in self._new())

    def changes(self) -> tuple[Leak, ...]:
        """Return all changes since the code was taken in."""
        users = chain.from_iterable(self._users.values())
        return (*self._torch.changes(), *(leak for found in users for leak in found.changes()))

    def put_back(self, but: Sequence[str]) -> None:
        """Undo all changes except those that match a pattern."""
        for namespace in chain(self._torch.namespaces, *self._users.values()):
            namespace.put_back(but)

    def _new(self) -> Iterator[tuple[str, ModuleType]]:
        for name in sys.modules.keys() - self._known:
            if users_file(sys.modules[name]) is not None:
                yield name, sys.modules[name]


class _Unchanging:
    """A group of namespaces that rarely change, which are compared all at once."""

    def __init__(self, namespaces: Iterable[Namespace]) -> None:
        self.namespaces = list(namespaces)
        self._now = [vars(namespace.holder) for namespace in self.namespaces]
        self._expect()

    def changes(self) -> list[Leak]:
        """Return all changes in the namespaces."""
        now = chain.from_iterable(space.values() for space in self._now)
        number = sum(map(len, self._now))
        if number == len(self._before) and all(map(is_, now, self._before)):
            return []
        leaks = [leak for namespace in self.namespaces for leak in namespace.changes()]
        self._expect()
        return leaks

    def _expect(self) -> None:
        self._before = [value for namespace in self.namespaces for value in namespace.before]


def _torchs() -> Iterator[Namespace]:
    named = {name: module for name, module in sys.modules.items() if is_torchs(name)}
    seen: set[type] = set()
    for name in sorted(named, key=len):  # a class is named by its shortest name
        yield Namespace(name, named[name])
        for attribute, value in vars(named[name]).items():
            if issubclass(type(value), type) and issubclass(value, COMPUTING) and value not in seen:
                seen.add(value)
                yield Namespace(f"{name}.{attribute}", value)


def _namespaces(name: str, module: ModuleType) -> Iterator[Namespace]:
    copier = Copier()
    yield Namespace(name, module, copier)
    for attribute, value in vars(module).items():
        kind = type(value)
        of_module = getattr(value if issubclass(kind, type) else kind, "__module__", None) == name
        if (kind is FunctionType and value.__module__ == name) or (of_module and _has_vars(value)):
            yield Namespace(f"{name}.{attribute}", value, copier)


def _has_vars(value: Any) -> bool:
    try:
        vars(value)
    except TypeError:
        return False
    return True
