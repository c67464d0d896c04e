"""Code: find and undo what a job replaced in torch's classes and in the user's modules.

The code of torch is watched where others patch it. The user's own modules are watched with their
data: all modules whose file is not installed code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, filterfalse
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
    """The code and module data of this process, to find what a function call changes in them."""

    def __init__(self) -> None:
        self._torch = _Unchanging(_torchs())
        self._users: dict[str, list[Namespace]] = {}
        self._known: dict[str, ModuleType] = {}
        self.take_in()

    def take_in(self) -> None:
        """Save the attributes of the user's modules that were imported since the last call."""
        for name, module in self._new():
            self._users[name] = list(_namespaces(name, module))
        self._known = dict(sys.modules)

    def renew(self) -> None:
        """Save the present attributes of torch and the user's modules instead of the earlier ones.

        Only what has changed is read again: others have run here, who may change their own modules.
        """
        if self._torch.changes() or self._torch.names != _names_of_torch():
            self._torch = _Unchanging(_torchs())
        for name, namespaces in [*self._users.items()]:
            module: ModuleType = namespaces[0].holder
            if sys.modules.get(name) is not module:
                del self._users[name]
            elif not _as_they_were(namespaces):
                self._users[name] = list(_namespaces(name, module))
        self.take_in()

    def late(self) -> tuple[ImportPath, ...]:
        """Return the user's modules that were imported after modules were last saved.

        In which state they began is unknown.
        """
        return tuple(ImportPath(name, "", users_file(module)) for name, module in self._new())

    def changes(self) -> tuple[Leak, ...]:
        """Return what has changed in torch and the user's modules since they were saved."""
        changed = chain.from_iterable(filterfalse(_as_they_were, self._users.values()))
        return (*self._torch.changes(), *(leak for found in changed for leak in found.changes()))

    def put_back(self, but: Sequence[str]) -> None:
        """Restore torch's and the user's saved attributes, except names that match `but`."""
        for namespace in chain(self._torch.namespaces, *self._users.values()):
            namespace.put_back(but)

    def _new(self) -> Iterator[tuple[str, ModuleType]]:
        if sys.modules == self._known:
            return
        for name, module in list(sys.modules.items()):
            if self._known.get(name) is not module and users_file(module) is not None:
                yield name, module


class _Unchanging:
    """The attributes of many modules and classes that rarely change, compared all at once."""

    def __init__(self, namespaces: Iterable[Namespace]) -> None:
        self.names = _names_of_torch()
        self.namespaces = list(namespaces)
        self._now = [vars(namespace.holder) for namespace in self.namespaces]
        self._expect()

    def changes(self) -> list[Leak]:
        """Return which attributes of torch's modules and classes have changed."""
        now = chain.from_iterable(space.values() for space in self._now)
        number = sum(map(len, self._now))
        if number == len(self._before) and all(map(is_, now, self._before)):
            return []
        leaks = [leak for namespace in self.namespaces for leak in namespace.changes()]
        self._expect()
        return leaks

    def _expect(self) -> None:
        self._before = [value for namespace in self.namespaces for value in namespace.before]


def _as_they_were(namespaces: Iterable[Namespace]) -> bool:
    return all(namespace.is_as_it_was() for namespace in namespaces)


def _names_of_torch() -> set[str]:
    return {name for name in sys.modules if is_torchs(name)}


def _torchs() -> Iterator[Namespace]:
    seen: set[type] = set()
    for name in sorted(_names_of_torch(), key=len):  # a class is named by its shortest name
        module = sys.modules[name]
        yield Namespace(name, module)
        for attribute, value in vars(module).items():
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
