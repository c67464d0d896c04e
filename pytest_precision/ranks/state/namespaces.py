"""Namespaces: the saved attributes of modules, classes and functions, to find changes of them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

from pytest_precision.ranks.state.copies import Copier, Copy, same
from pytest_precision.ranks.state.definitions import (
    MISSING,
    inherited,
    is_code,
    is_torchs_own,
    value_in_words,
)
from pytest_precision.ranks.state.leaks import Leak, short_text


class Namespace:
    """The attributes of one module or class, to find what a function call changes.

    Args:
        name: name of the holder, for messages.
        holder: module, class, function or object.
        copier: copies containers; without it, changes of data do not count.

    Attributes:
        name: as given.
        holder: as given.
        before: the attributes of the holder when this object saved them.
        copies: copies of those that are containers or tensors.
    """

    def __init__(self, name: str, holder: Any, copier: Copier | None = None) -> None:
        self.name, self.holder = name, holder
        self._with_data = copier is not None
        self.before = dict(_attributes(holder))
        self.copies: dict[str, Copy] = {}
        if copier is not None:
            all_copies = (
                (name, copier(value)) for name, value in self.before.items() if _plain(name)
            )
            self.copies = {name: copy for name, copy in all_copies if type(copy) is Copy}

    def changes(self) -> tuple[Leak, ...]:
        """Return the attributes of the module or class that something other than torch changed.

        If there are none, the present attributes are saved instead.
        """
        leaks = tuple(leak for _, leak in self._named_leaks())
        if not leaks:
            self.before = dict(_attributes(self.holder))
        return leaks

    def put_back(self, but: Sequence[str]) -> None:
        """Restore the attributes of the module or class, except names that match a pattern."""
        for name, leak in list(self._named_leaks()):
            if leak.is_one_of(but):
                continue
            if name in self.before:
                setattr(self.holder, name, self.before[name])
            else:
                delattr(self.holder, name)
            if name in self.copies:
                self.copies[name].refill(self.before[name])

    def _named_leaks(self) -> Iterator[tuple[str, Leak]]:
        attributes = _attributes(self.holder)
        for name in {**self.before, **attributes}:
            before, after = self.before.get(name, MISSING), attributes.get(name, MISSING)
            copy = self.copies.get(name)
            if before is after and (copy is None or copy.holds_for(after)):
                continue
            if self._counts(name, before if copy is None else copy, after):
                change = self._change(name, before if copy is None else copy, after)
                yield name, Leak(f"{self.name}.{name}", change)

    def _counts(self, name: str, before: object, after: object) -> bool:
        if isinstance(after, ModuleType) or same(after, before):
            return False
        if is_torchs_own(f"{self.name}.{name}", self._unwrapped(name), after):
            return False
        if is_code(before) or is_code(after):
            return _plain(name) or isinstance(self.holder, type)
        return self._with_data and _plain(name)

    def _unwrapped(self, name: str) -> object:
        before = self.before.get(name, MISSING)
        if before is MISSING and isinstance(self.holder, type):
            before = inherited(self.holder, name)
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
    attributes: Mapping[str, Any] = vars(holder)
    return attributes


def _plain(name: str) -> bool:
    # Other names are Python's, or those that the compiler puts next to what it has compiled.
    return not name.startswith("__")


def _words(value: object) -> str:
    return short_text(value) if isinstance(value, Copy) else value_in_words(value)
