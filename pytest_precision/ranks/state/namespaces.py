"""Namespaces: the saved attributes of modules, classes and functions, to find changes of them."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import is_
from types import FunctionType, ModuleType
from typing import Any

from pytest_precision.ranks.state.copies import Copier, Copy, same
from pytest_precision.ranks.state.definitions import MISSING, is_code, is_torchs_own
from pytest_precision.ranks.state.leaks import Leak, short_text


class Namespace:
    """The attributes of one module or class, to find what a function call changes.

    Args:
        name: name of the holder, for messages.
        holder: module, class, function or object.
        copier: copies containers; without it, changes of data do not count.
    """

    def __init__(self, name: str, holder: Any, copier: Copier | None = None) -> None:
        self.name, self.holder = name, holder
        self._with_data = copier is not None
        self._before = dict(_attributes(holder))
        self._copies: dict[str, Copy] = {}
        if copier is not None:
            seen = ((name, copier(value)) for name, value in self._before.items() if _plain(name))
            self._copies = {name: copy for name, copy in seen if type(copy) is Copy}

    @property
    def before(self) -> Collection[object]:
        """The values that the module or class had in its attributes when this object saved them."""
        return self._before.values()

    def is_as_it_was(self) -> bool:
        """Return whether every attribute of the module or class is as it was when it was saved."""
        return self._same_as(_attributes(self.holder))

    def changes(self) -> tuple[Leak, ...]:
        """Return the attributes of the module or class that something other than torch changed.

        If there are none, the present attributes are saved instead.
        """
        leaks = tuple(leak for _, leak in self._changed())
        if not leaks:
            self._before = dict(_attributes(self.holder))
        return leaks

    def put_back(self, but: Sequence[str]) -> None:
        """Restore the attributes of the module or class, except names that match a pattern."""
        for name, leak in list(self._changed()):
            if leak.is_one_of(but):
                continue
            if name in self._before:
                setattr(self.holder, name, self._before[name])
            else:
                delattr(self.holder, name)
            if name in self._copies:
                self._copies[name].refill(self._before[name])

    def _changed(self) -> Iterator[tuple[str, Leak]]:
        now = _attributes(self.holder)
        if self._same_as(now):
            return
        for name in {**self._before, **now}:
            before, after = self._before.get(name, MISSING), now.get(name, MISSING)
            copy = self._copies.get(name)
            if before is after and (copy is None or copy.holds_for(after)):
                continue
            if self._counts(name, before if copy is None else copy, after):
                change = self._change(name, before if copy is None else copy, after)
                yield name, Leak(f"{self.name}.{name}", change)

    def _same_as(self, now: Mapping[str, object]) -> bool:
        same_objects = len(now) == len(self._before) and all(
            map(is_, now.values(), self._before.values())
        )
        return same_objects and all(c.holds_for(now[name]) for name, c in self._copies.items())

    def _counts(self, name: str, before: object, after: object) -> bool:
        if isinstance(after, ModuleType) or same(after, before):
            return False
        if is_torchs_own(f"{self.name}.{name}", self._unwrapped(name), after):
            return False
        if is_code(before) or is_code(after):
            return _plain(name) or isinstance(self.holder, type)
        return self._with_data and _plain(name)

    def _unwrapped(self, name: str) -> object:
        before = self._before.get(name, MISSING)
        if before is MISSING and isinstance(self.holder, type):
            before = getattr(super(self.holder, self.holder), name, MISSING)
        return inspect.unwrap(before) if callable(before) else before

    def _change(self, name: str, before: object, after: object) -> str:
        if after is MISSING:
            return "was removed"
        if before is MISSING and self._unwrapped(name) is MISSING:
            return f"was absent, is {_words(after)}"
        if is_code(after):
            return f"was replaced by {_words(after)}"
        return f"was {_words(before)}, is {_words(after)}"


def _attributes(holder: Any) -> Mapping[str, Any]:
    if isinstance(holder, FunctionType):
        # A default value may be a container that the function fills.
        return {**vars(holder), "defaults": holder.__defaults__, "keywords": holder.__kwdefaults__}
    found: Mapping[str, Any] = vars(holder)
    return found


def _plain(name: str) -> bool:
    # Other names are Python's, or those that the compiler puts next to what it has compiled.
    return not name.startswith("__")


def _words(value: Any) -> str:
    if isinstance(value, FunctionType) and "__wrapped__" in vars(value):
        # A wrapper has the name of the function that it wraps.
        by = f"{value.__globals__.get('__name__')}:{value.__code__.co_name}"
        return f"{by} around {value.__module__}:{value.__qualname__}"
    if is_code(value) and isinstance(getattr(value, "__qualname__", None), str):
        return f"{value.__module__}:{value.__qualname__}"
    try:
        return short_text(str(value) if isinstance(value, Copy) else repr(value))
    except Exception:  # the value's own code may raise anything
        return object.__repr__(value)
