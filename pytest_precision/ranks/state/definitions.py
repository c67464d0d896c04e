"""Definitions: find what a test has assigned in its own process, where no rank sees it.

Ranks import modules themselves. So the functions, classes and constants of the user's modules and
of torch must be those that the modules define. Containers, what is added to a module, and what a
module's own functions fill in or count up are its state, and stay in the process that has them.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from operator import is_
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from pytest_precision.ranks.code.installed import is_installed, users_file
from pytest_precision.ranks.state.leaks import short_text

TREES = ("torch.amp", "torch.autograd", "torch.nn", "torch.optim")
SINGLE_MODULES = (
    "torch",
    "torch.distributed",
    "torch.distributed.distributed_c10d",
    "torch.functional",
    "torch.utils.checkpoint",
)
"""Modules of torch that others patch, with all that are below the trees."""

CONSTANTS = frozenset({bool, int, float, complex, str, bytes, tuple, frozenset, type(None)})
DESCRIPTORS = (staticmethod, classmethod, property)

MISSING = object()
"""In place of the value of a name that is not there."""


@dataclass(frozen=True)
class _Holder:
    """A module or a class, with its original attributes."""

    name: str
    holder: Any
    before: Mapping[str, object]

    @property
    def is_untouched(self) -> bool:
        attributes = vars(self.holder)
        return len(attributes) == len(self.before) and all(
            map(is_, attributes.values(), self.before.values())
        )


class Definitions:
    """The original definitions in this process's modules, to find what was assigned to them."""

    def __init__(self) -> None:
        self._known: set[str] = set()
        self._holders: list[_Holder] = []
        self.take_in()

    def take_in(self) -> None:
        """Save the definitions in the modules that were imported since this was last called."""
        new = sys.modules.keys() - self._known
        self._known |= new
        for name in sorted(new, key=len):  # a class is named by its shortest name
            module: object = sys.modules[name]
            if not isinstance(module, ModuleType):
                continue  # asking an object in its place for its file might run anything
            if is_torchs(name) or users_file(module) is not None:
                self._holders += _holders(name, module)

    def replaced(self, but: Container[tuple[int, str]] = ()) -> list[str]:
        """Return a sentence for each name that was assigned: its value before and its value now.

        How modules began that were imported since `take_in` is unknown; but functions of the user's
        in torch are replacements also there.

        Args:
            but: the `id` of the module or class and the name, of changes that are known.
        """
        touched = (scope for scope in self._holders if not scope.is_untouched)
        changes = [(scope, *change) for scope in touched for change in _changes(scope)]
        late = [name for name in sys.modules.keys() - self._known if is_torchs(name)]
        for name in sorted(late, key=len):
            changes += [
                (scope, *f)
                for scope in _holders(name, sys.modules[name])
                for f in _foreign_functions(scope)
            ]
        return [words for scope, name, words in changes if (id(scope.holder), name) not in but]


@cache  # each job asks for all modules of its process
def is_torchs(name: str) -> bool:
    """Return whether a dotted name is in the part of torch that is watched for monkeypatches."""
    return name in SINGLE_MODULES or any(f"{name}.".startswith(f"{tree}.") for tree in TREES)


def is_code(value: object) -> bool:
    """Return whether a value is a function, a class, or a method or property of a class."""
    return callable(value) or isinstance(value, DESCRIPTORS)


def is_torchs_own(name: str, before: object, after: object) -> bool:
    """Return whether torch itself replaced an attribute, as at the first use of a feature.

    It wraps optimizer steps for its profiler, and wraps functions to hide them from its compiler or
    to count modules for it.
    """
    if name == "torch.Storage":  # it follows the default dtype
        return True
    if not isinstance(after, FunctionType):
        return False
    home = after.__globals__.get("__name__")
    if home == "torch._dynamo.mutation_guard":
        return True
    marks = (getattr(after, mark, False) for mark in ("hooked", "_torchdynamo_disable"))
    wraps = home == "torch._compile" or any(marks)
    inner = inspect.unwrap(before) if callable(before) else before
    return wraps and inspect.unwrap(after) is inner


def _holders(name: str, module: ModuleType) -> Iterator[_Holder]:
    yield _Holder(name, module, dict(vars(module)))
    for attribute, value in list(vars(module).items()):
        # Not by isinstance, for which a lazy or deprecated object answers itself, with a warning.
        if issubclass(type(value), type) and value.__module__ == name:
            yield _Holder(f"{name}.{attribute}", value, dict(vars(value)))


def _changes(scope: _Holder) -> Iterator[tuple[str, str]]:
    attributes = vars(scope.holder)
    for name in {**scope.before, **attributes}:
        before, after = scope.before.get(name, MISSING), attributes.get(name, MISSING)
        if before is MISSING:
            before = inherited(scope.holder, name)
        if before is not after and _counts(scope, name, before, after):
            yield (
                name,
                f"{scope.name}.{name} was {value_in_words(before)}, is {value_in_words(after)}",
            )


def inherited(holder: Any, name: str) -> object:
    """Return the value that a class inherits, or an object has of its class; `MISSING` for none."""
    if isinstance(holder, type):
        return getattr(super(holder, holder), name, MISSING)
    return getattr(type(holder), name, MISSING)


def _counts(scope: _Holder, name: str, before: Any, after: Any) -> bool:
    if before is MISSING or isinstance(before, ModuleType) or isinstance(after, ModuleType):
        return False
    if name.startswith("__") and not (isinstance(scope.holder, type) and callable(after)):
        return False
    if is_torchs(scope.name):
        return is_code(before) and not _is_frameworks(scope, name, before, after)
    if is_torchs_own(f"{scope.name}.{name}", before, after):
        return False
    if type(before) in CONSTANTS:
        same = type(before) is type(after) and repr(before) == repr(after)
        return not same and not _is_state(scope, name, before)
    return is_code(before)


def _is_frameworks(scope: _Holder, name: str, before: Any, after: Any) -> bool:
    """Return whether torch or an installed package replaced an attribute of torch."""
    home = getattr(after, "__module__", None)
    module = sys.modules.get(home) if isinstance(home, str) else None
    file = getattr(module, "__file__", None)
    of_others = isinstance(after, FunctionType | type) and not str(home).startswith("torch")
    if of_others and isinstance(file, str) and is_installed(file):
        return True
    return is_torchs_own(f"{scope.name}.{name}", before, after)


def _is_state(scope: _Holder, name: str, before: object) -> bool:
    """Return whether a name is the module's own state: its functions assign or increment it."""
    module = (
        scope.holder
        if isinstance(scope.holder, ModuleType)
        else sys.modules[scope.holder.__module__]
    )
    set_anew, counted = _rebound(str(module.__file__))
    return name in counted or (name in set_anew and not before)


@cache
def _rebound(file: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return two sets of names: those a file's functions assign, and those they update as by `+=`.

    Names are globals, and attributes of anything but the object of a method.
    """
    try:
        tree = ast.parse(Path(file).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return frozenset(), frozenset()
    set_anew: set[str] = set()
    counted: set[str] = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            declared = {
                n for node in ast.walk(function) if isinstance(node, ast.Global) for n in node.names
            }
            for node in ast.walk(function):
                name = _stored_name(node, declared)
                set_anew |= {name} if name else set()
                if isinstance(node, ast.AugAssign):
                    name = _stored_name(node.target, declared)
                    counted |= {name} if name else set()
    return frozenset(set_anew), frozenset(counted)


def _stored_name(node: ast.AST, declared: set[str]) -> str:
    if not isinstance(getattr(node, "ctx", None), ast.Store):
        return ""
    if isinstance(node, ast.Name) and node.id in declared:
        return node.id
    if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") != "self":
        return node.attr
    return ""


def _foreign_functions(scope: _Holder) -> Iterator[tuple[str, str]]:
    for name, value in scope.before.items():
        is_function = type(value) is FunctionType
        home = sys.modules.get(value.__module__) if is_function else None
        if users_file(home) is not None:
            yield name, f"{scope.name}.{name} is {value_in_words(value)}"


def value_in_words(value: Any) -> str:
    """Return a value in words: a function or class by its name, others as text of some length."""
    if value is MISSING:
        return "absent"
    if isinstance(value, DESCRIPTORS):
        value = getattr(value, "__func__", None) or getattr(value, "fget", None)
    if isinstance(value, FunctionType) and "__wrapped__" in vars(value):
        # A wrapper has the name of the function that it wraps.
        by = f"{value.__globals__.get('__name__')}:{value.__code__.co_name}"
        return f"{by} around {value.__module__}:{value.__qualname__}"
    if isinstance(getattr(value, "__qualname__", None), str):
        return f"{getattr(value, '__module__', None) or 'builtins'}:{value.__qualname__}"
    try:
        return short_text(repr(value))
    except Exception:  # the value's own code may raise anything
        return object.__repr__(value)
