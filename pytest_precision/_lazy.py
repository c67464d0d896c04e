"""Lazy: names of a package that are imported when they are first used, and torch with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def exports(
    package: str, homes: Mapping[str, Iterable[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """What a package has as `__getattr__` and `__dir__` (PEP 562).

    A function and its module must not share a name: importing the module would replace the
    function.

    Args:
        package: its `__name__`.
        homes: module in the package to what is exported from it, as behind an import: `Gpt as gpt`.
    """
    found = {}
    for module, names in homes.items():
        for text in names:
            attribute, _, alias = text.partition(" as ")
            found[alias or attribute] = f"{package}.{module}", attribute

    def getattribute(name: str) -> Any:
        if name not in found:
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(found))}"
            )
        module, attribute = found[name]
        return getattr(import_module(module), attribute)

    return getattribute, lambda: sorted(found)
