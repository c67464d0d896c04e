"""Find and undo what a job replaced in torch's classes and in the user's modules.

The code of torch is watched where others patch it. The user's own modules are watched with their
data: all modules whose file is not installed code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from operator import attrgetter, is_, methodcaller
from types import FunctionType, ModuleType
from typing import Any

import torch
import torch.distributed
import torch.distributed.nn
import torch.nn.parallel
import torch.optim
import torch.utils.checkpoint

from pytest_precision.ranks.code.installed import users_file
from pytest_precision.ranks.state.copies import Copier
from pytest_precision.ranks.state.definitions import MISSING, is_torchs
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
        self._names_of_torch = _names_of_torch()
        self._torch = _Saved(_namespaces_of_torch())
        self._users: dict[str, _Saved] = {}
        self._known: dict[str, ModuleType] = {}
        self.take_in()

    def take_in(self) -> None:
        """Save the attributes of user modules that were imported since this was last called."""
        for name, module in self._new():
            self._users[name] = _Saved(_namespaces(name, module))
        self._known = dict(sys.modules)

    def renew(self) -> None:
        """Save the present attributes of torch and the user's modules instead of the earlier ones.

        Only what has changed is read again: others have run here, who may change their own modules.
        """
        names = _names_of_torch()
        if self._names_of_torch != names or self._torch.changes():
            self._names_of_torch = names
            self._torch = _Saved(_namespaces_of_torch())
        for name, saved in [*self._users.items()]:
            module: ModuleType = saved.namespaces[0].holder
            if sys.modules.get(name) is not module:
                del self._users[name]
            elif saved.changes():
                self._users[name] = _Saved(_namespaces(name, module))
        self.take_in()

    def has_new(self) -> bool:
        """Return whether modules of the user's were imported after attributes were last saved.

        In which state they began is unknown.
        """
        return any(True for _ in self._new())

    def changes(self) -> tuple[Leak, ...]:
        """Return the changed definitions of torch and of the user's modules since the last save."""
        return tuple(leak for saved in self._saved() for leak in saved.changes())

    def put_back(self, but: Sequence[str]) -> None:
        """Restore saved attributes of torch's and the user's code, except names matching `but`."""
        for saved in self._saved():
            for namespace in saved.namespaces:
                namespace.put_back(but)

    def _saved(self) -> Iterator[_Saved]:
        return chain([self._torch], self._users.values())

    def _new(self) -> Iterator[tuple[str, ModuleType]]:
        if sys.modules == self._known:
            return
        for name, module in list(sys.modules.items()):
            if self._known.get(name) is not module and users_file(module) is not None:
                yield name, module


class _Saved:
    """The saved attributes of many modules, classes and functions; finds changes in all at once.

    A process of many tests has thousands of them, and a function call rarely changes one.
    """

    def __init__(self, namespaces: Iterable[Namespace]) -> None:
        self.namespaces = list(namespaces)
        holders = [namespace.holder for namespace in self.namespaces]
        # Of others, the dictionary itself can be replaced.
        self._views = [vars(holder).values() for holder in holders if isinstance(holder, _LASTING)]
        self._others = [holder for holder in holders if not isinstance(holder, _LASTING)]
        self._functions = [holder for holder in holders if isinstance(holder, FunctionType)]
        self._expect()

    def changes(self) -> list[Leak]:
        """Return which attributes have changed, other than by torch itself."""
        unchanged = all(map(is_, self._values(), self._before))
        if unchanged and all(copy.holds_for(value) for copy, value in self._copies):
            return []
        leaks = [leak for namespace in self.namespaces for leak in namespace.changes()]
        if not leaks:
            self._expect()
        return leaks

    def _expect(self) -> None:
        self._before = [*self._values()]
        self._copies = [
            (copy, namespace.before[name])
            for namespace in self.namespaces
            for name, copy in namespace.copies.items()
        ]

    def _values(self) -> Iterator[object]:
        """Yield the present values in a fixed order, then `MISSING`, by iterators written in C."""
        return chain(
            chain.from_iterable(self._views),
            chain.from_iterable(map(_VALUES, map(vars, self._others))),
            map(_DEFAULTS, self._functions),
            map(_KEYWORDS, self._functions),
            [MISSING],
        )


_LASTING = (ModuleType, type)
_DEFAULTS, _KEYWORDS = attrgetter("__defaults__"), attrgetter("__kwdefaults__")
_VALUES = methodcaller("values")


def _names_of_torch() -> set[str]:
    return {name for name in sys.modules if is_torchs(name)}


def _namespaces_of_torch() -> Iterator[Namespace]:
    classes: set[type] = set()
    for name in sorted(_names_of_torch(), key=len):  # a class is named by its shortest name
        module = sys.modules[name]
        yield Namespace(name, module)
        for attribute, value in vars(module).items():
            if (
                issubclass(type(value), type)
                and issubclass(value, COMPUTING)
                and value not in classes
            ):
                classes.add(value)
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
