"""A callable and its bound arguments as plain data that another process can call."""

from __future__ import annotations

import functools
import io
import os
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MethodType, ModuleType
from typing import Any

from pytest_precision.errors import expected_but_got, is_bad_input
from pytest_precision.ranks.code.loading import load_module

__tracebackhide__ = is_bad_input

OUR_PACKAGE = __name__.partition(".")[0]
TRUSTED = frozenset({OUR_PACKAGE, "torch", "numpy", *sys.stdlib_module_names})
"""Packages whose objects, bound to a function of this package, do not make it the user's."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One bound argument, as pickled bytes that can be compared, hashed and sent.

    Attributes:
        name: name of a keyword argument; None for a positional one.
        pickled: the pickled value.
    """

    name: str | None
    pickled: bytes


@dataclass(frozen=True, slots=True)
class ImportPath:
    """Where a module-level callable is imported from, and the arguments that are bound to it.

    Attributes:
        module: dotted name of the module.
        qualname: name of the callable in the module, dotted if it is defined in a class; empty for
            the module itself.
        file: absolute path of the module; None for a module without a file (a built-in one).
        arguments: bound arguments as in `functools.partial`, positional ones first.
    """

    module: str
    qualname: str
    file: str | None = None
    arguments: tuple[Argument, ...] = ()

    @classmethod
    def of(
        cls, function: Callable[..., Any] | ImportPath, argument: str = "candidate"
    ) -> ImportPath:
        """Return the import path of a module-level callable, or of a `functools.partial` of one.

        Args:
            function: the callable; an import path is returned unchanged.
            argument: the caller's name for the argument, for the message.

        Raises:
            TypeError: it has no import path (a lambda, a local function, a bound method, another
                object), or an argument of the partial does not pickle.
        """
        if isinstance(function, ImportPath):
            return function
        if isinstance(function, functools.partial):
            return cls.of(function.func, argument).bind(*function.args, **function.keywords)
        name = getattr(function, "__qualname__", None)
        module = getattr(function, "__module__", None)
        if not callable(function):
            raise _type_error(
                function, argument, "it cannot be called; pass the function or class itself"
            )
        if isinstance(function, MethodType):
            raise _type_error(
                function,
                argument,
                "a bound method carries its object; pass a function that makes the object",
            )
        if not (isinstance(name, str) and isinstance(module, str)):
            raise _type_error(
                function,
                argument,
                "an object has no import path; pass its class, or a partial of it",
            )
        if "<lambda>" in name:
            raise _type_error(function, argument, "a lambda has no import path; write it with def")
        if "<locals>" in name:
            raise _type_error(
                function, argument, "a local function has no import path; move it out"
            )
        home = sys.modules.get(module)
        if home is None or _attribute(home, name) is not function:
            raise _type_error(
                function, argument, f"{module}:{name} is not this object; give it a name of its own"
            )
        file = getattr(home, "__file__", None)
        if file is None and module == "__main__":
            raise _type_error(
                function, argument, "interactive code has no file; write it into a module"
            )
        return cls(module, name, None if file is None else os.path.abspath(file))

    @property
    def name(self) -> str:
        """The callable's name as `module:qualified name`, without bound arguments."""
        return f"{self.module}:{self.qualname}"

    @property
    def home(self) -> ImportPath:
        """The import path of the callable's module, without the callable and its arguments."""
        return replace(self, qualname="", arguments=())

    @property
    def is_of_users_module(self) -> bool:
        """Whether the callable is defined outside this package."""
        return _root(self.module) != OUR_PACKAGE

    @property
    def is_users_own(self) -> bool:
        """Whether the callable, or an argument bound to it, has code from outside this package."""
        bound = (_root(module) for a in self.arguments for module in _modules(a.pickled))
        return self.is_of_users_module or not TRUSTED.issuperset(bound)

    def bind(self, *args: Any, **kwargs: Any) -> ImportPath:
        """Return a copy with more arguments bound, as `functools.partial` does it.

        Raises:
            TypeError: an argument does not pickle; the message names it.
        """
        old = [argument for argument in self.arguments if argument.name not in kwargs]
        positional = [argument for argument in old if argument.name is None]
        keywords = [argument for argument in old if argument.name is not None]
        positional += [
            _packed_argument(value, None, f"argument {len(positional) + i}", self)
            for i, value in enumerate(args)
        ]
        keywords += [_packed_argument(value, name, name, self) for name, value in kwargs.items()]
        return replace(self, arguments=(*positional, *keywords))

    def resolve(self) -> Callable[..., Any]:
        """Import the callable's module if necessary; return the callable with its arguments bound.

        Raises:
            ImportError: the module cannot be imported.
            AttributeError: the module has no such callable.
            TypeError: a bound argument cannot be unpickled here; the message names it.
        """
        # The module comes first: it often defines classes of the arguments, and only this import
        # may make its name known.
        function: Callable[..., Any] = load_module(self.module, self.file)  # type: ignore[assignment]
        for name in filter(None, self.qualname.split(".")):
            function = getattr(function, name)
        if not self.arguments:
            return function
        args = [_value(a, self) for a in self.arguments if a.name is None]
        kwargs = {a.name: _value(a, self) for a in self.arguments if a.name is not None}
        return functools.partial(function, *args, **kwargs)

    def lacking(self) -> str:
        """Return `module:name` if this process cannot import the callable; empty if it can.

        Raises:
            Exception: the module is there, and raises it while it is imported.
        """
        try:
            module = load_module(self.module, self.file)
        except ModuleNotFoundError as error:
            if not f"{self.module}.".startswith(f"{error.name}."):
                raise  # the module is there, and imports another one
            return self.name
        return "" if _attribute(module, self.qualname) is not None else self.name

    def __str__(self) -> str:
        if not self.arguments:
            return self.name
        words = (_words(pickle.loads(argument.pickled)) for argument in self.arguments)
        named = (
            word if argument.name is None else f"{argument.name}={word}"
            for argument, word in zip(self.arguments, words, strict=True)
        )
        return f"{self.name}({', '.join(named)})"


def _words(value: object) -> str:
    # The repr of a function holds its address, which differs from process to process.
    if callable(value):
        try:
            return str(ImportPath.of(value))
        except TypeError:
            pass
    return repr(value)


def _type_error(function: object, argument: str, why: str) -> TypeError:
    return TypeError(
        expected_but_got(
            "a module-level callable, or a functools.partial of one,",
            f"{argument}={function!r} ({type(function).__name__}): the ranks import it, and {why}",
        )
    )


def _packed_argument(value: object, name: str | None, word: str, path: ImportPath) -> Argument:
    try:
        return Argument(name, pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
    except Exception as error:  # pickling runs the value's own code
        raise TypeError(
            expected_but_got(
                "arguments that pickle, since they travel to the ranks,",
                f"{word}={value!r} ({type(value).__name__}) for {path.name}: {error}",
                "pass plain data and make the object from it in the function",
            )
        ) from error


def _value(argument: Argument, path: ImportPath) -> Any:
    try:
        return pickle.loads(argument.pickled)
    except Exception as error:  # unpickling runs the value's own code
        word = argument.name or f"argument {path.arguments.index(argument)}"
        raise TypeError(
            f"expected arguments that unpickle where they arrive, but {word} of {path.name} "
            f"does not: {type(error).__name__}: {error}; pass plain data, or keep its class in the "
            "function's module"
        ) from error


def _root(module: str) -> str:
    return module.partition(".")[0]


class _Modules(pickle.Unpickler):
    """An unpickler that collects the modules of all classes and functions in a value."""

    def __init__(self, pickled: bytes) -> None:
        super().__init__(io.BytesIO(pickled))
        self.found: set[str] = set()

    def find_class(self, module: str, name: str) -> Any:
        """Record the name of the module of a class or function, and return the object."""
        self.found.add(module)
        return super().find_class(module, name)


def _modules(pickled_bytes: bytes) -> set[str]:
    reader = _Modules(pickled_bytes)
    reader.load()
    return reader.found


def _attribute(module: ModuleType, qualname: str) -> object:
    attribute: object = module
    for name in qualname.split("."):
        attribute = getattr(attribute, name, None)
    return attribute
