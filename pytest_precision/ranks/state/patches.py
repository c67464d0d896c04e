"""Patches: find what a test has changed by `monkeypatch` or `unittest.mock` and not yet put back.

Both keep each value that they have replaced until they put it back. So what is pending at a check
is known of any target, and nothing has to be known of the target itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, wraps
from types import MethodType, ModuleType
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

import pytest

from pytest_precision.ranks.state.definitions import MISSING, inherited, value_in_words

_NOTSET: object = pytest.MonkeyPatch.setattr.__defaults__[0]  # type: ignore[index]
"""What pytest keeps in place of the value of a name that was not there."""

_ENVIRONMENT = os.environ
"""The variables of this process, also while a test has put another mapping in their place."""

_CARRIED = ((os, "environ"), (sys, "path"))
"""Attributes that each job takes to its ranks, as it does the directory."""

_TOOLS = ("_pytest", "unittest.mock")
"""Modules of both tools, which pytest and its plugins patch. No side computes with them, but a mock
may stand for an object with which one does."""

_SCALARS = frozenset({bool, int, float, complex, str, bytes, type(None)})


class Patch(NamedTuple):
    """One change that has not been put back.

    Attributes:
        target: object or mapping that was changed.
        name: attribute of the object, or key of the mapping.
        before: value that will be put back; `MISSING` for none.
        after: present value; `MISSING` for none.
        is_item: whether the target is a mapping, and the name one of its keys.
    """

    target: Any
    name: Any
    before: object
    after: object
    is_item: bool

    @property
    def key(self) -> tuple[int, bool, Any]:
        """What distinguishes it from changes of other attributes and items."""
        return id(self.target), self.is_item, self.name

    @property
    def counts(self) -> bool:
        """Whether ranks have another value than this process, and a side may compute with it."""
        same = is_put_back(self.before, self.after)
        return not (same or self._reaches_ranks or self._is_of_tools)

    @property
    def _reaches_ranks(self) -> bool:
        if self.is_item:
            environments = _ENVIRONMENT, os.environ, os.environb
            return any(self.target is mapping for mapping in environments)
        return any(self.target is holder and self.name == name for holder, name in _CARRIED)

    @property
    def _is_of_tools(self) -> bool:
        if isinstance(self.target, ModuleType):
            home = self.target.__name__
        elif isinstance(self.target, type):
            home = self.target.__module__
        else:
            return type(self.target).__module__.startswith("_pytest.")
        return any(f"{home}.".startswith(f"{tool}.") for tool in _TOOLS)

    def __str__(self) -> str:
        place = f"[{self.name!r}]" if self.is_item else f".{self.name}"
        before = self.before
        if before is MISSING and not self.is_item:
            before = inherited(self.target, self.name)
        change = f"was {value_in_words(before)}, is {value_in_words(self.after)}"
        return f"{_name(self.target)}{place} {change}"


class _Changes(NamedTuple):
    """What one `MonkeyPatch` has changed; it empties both lists when it puts everything back."""

    maker: ReferenceType[pytest.MonkeyPatch]
    attributes: list[tuple[Any, str, object]]
    items: list[tuple[Any, Any, object]]

    def patches(self) -> Iterator[Patch]:
        """Yield its changes, of each attribute and item only the first, which has the original."""
        first_patches: dict[tuple[int, bool, Any], Patch] = {}
        for change in self.attributes:
            patch = _attribute(*change)
            first_patches.setdefault(patch.key, patch)
        for item in self.items:
            patch = _item(*item)
            first_patches.setdefault(patch.key, patch)
        yield from first_patches.values()


_CHANGES: list[_Changes] = []
_STARTED: dict[int, Any] = {}


@cache
def note_patches() -> None:
    """Note each `MonkeyPatch` and each patcher of `unittest.mock` of this process from now on."""
    from unittest import mock  # it takes as long as pytest, and only a session with cells needs it

    begin: Callable[[pytest.MonkeyPatch], None] = pytest.MonkeyPatch.__init__

    @wraps(begin)
    def noted(self: pytest.MonkeyPatch) -> None:
        begin(self)
        _CHANGES.append(_Changes(ref(self), self._setattr, self._setitem))

    pytest.MonkeyPatch.__init__ = noted  # type: ignore[method-assign]
    attributes: Any = mock._patch
    items: Any = mock._patch_dict
    attributes.__enter__ = _starting(attributes.__enter__)
    attributes.__exit__ = _ending(attributes.__exit__)
    items._patch_dict = _starting(items._patch_dict)
    items._unpatch_dict = _ending(items._unpatch_dict)


def pending_patches() -> list[Patch]:
    """Return the changes that have not been put back and do not reach ranks, each once."""
    # One that nobody has any more has still changed what it changed.
    _CHANGES[:] = [
        changes for changes in _CHANGES if changes.maker() or changes.attributes or changes.items
    ]
    patches = [patch for changes in _CHANGES for patch in changes.patches()]
    patches += [patch for patcher in _STARTED.values() for patch in _of_patcher(patcher)]
    return [*{patch.key: patch for patch in patches if patch.counts}.values()]


def is_put_back(before: object, after: object) -> bool:
    """Return whether two values are one object, equal scalars, or tuples of such values."""
    if before is after:
        return True
    if type(before) is not type(after):
        return False
    if isinstance(before, tuple) and isinstance(after, tuple):
        return len(before) == len(after) and all(map(is_put_back, before, after))
    if isinstance(before, MethodType):  # each look at a method makes another object
        return before == after
    return type(before) in _SCALARS and repr(before) == repr(after)


def _starting(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def start(self: Any, *args: Any) -> Any:
        result = method(self, *args)
        _STARTED[id(self)] = self
        return result

    return start


def _ending(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def end(self: Any, *args: Any) -> Any:
        _STARTED.pop(id(self), None)
        return method(self, *args)

    return end


def _of_patcher(patcher: Any) -> Iterator[Patch]:
    from unittest import mock

    if hasattr(patcher, "attribute"):
        before = patcher.temp_original
        yield _attribute(patcher.target, patcher.attribute, before, absent=mock.DEFAULT)
        return
    mapping, before = patcher.in_dict, patcher._original
    for key in [*{**patcher.values, **before, **mapping}]:
        yield _item(mapping, key, _value(before, key))


def _attribute(target: Any, name: str, before: object, absent: object = _NOTSET) -> Patch:
    """Return a change of an attribute, with its value where the tool has put the other one."""
    before = MISSING if before is absent else before
    attributes = _attribute_or_missing(target, "__dict__")
    if attributes is not MISSING and name in attributes:
        after = attributes[name]
    elif before is MISSING and inherited(target, name) is not MISSING:
        after = MISSING
    else:  # also what `__setattr__` of the target has put elsewhere
        after = _attribute_or_missing(target, name)
    return Patch(target, name, before, after, is_item=False)


def _item(mapping: Mapping[Any, Any], key: Any, before: object) -> Patch:
    before = MISSING if before is _NOTSET else before
    return Patch(mapping, key, before, _value(mapping, key), is_item=True)


def _value(mapping: Mapping[Any, Any], key: Any) -> object:
    if key not in mapping:  # some mappings make an item for a key that is asked for
        return MISSING
    return mapping[key]


def _attribute_or_missing(target: Any, name: str) -> Any:
    """Return an attribute of an object of any class; `MISSING` if it does not give one."""
    try:
        return getattr(target, name)
    except Exception:  # whatever a `__getattr__` of the user's raises
        return MISSING


def _name(target: Any) -> str:
    """Return the name of an object in the first module that has it, or that of its class."""
    if isinstance(target, ModuleType):
        return target.__name__
    named = _attribute_or_missing(target, "__qualname__")
    if isinstance(named, str):
        return f"{target.__module__}.{named}"
    for module_name, module in sorted(sys.modules.items()):
        if isinstance(module, ModuleType):
            if vars(module) is target:
                return module_name
            for name, value in [*vars(module).items()]:
                if value is target:
                    return f"{module_name}.{name}"
    return f"<an object of {type(target).__module__}:{type(target).__qualname__}>"
