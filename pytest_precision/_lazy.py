"""Lazy exports: names of a package, and with them torch, are imported when first used."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import resolve_name
from typing import Any


def exports(
    package: str,
    homes: Mapping[str, Iterable[str]],
    renamed: Mapping[str, str] | None = None,
    *,
    open_to_others: bool = False,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package that imports its names on first use.

    A function and its module must not share a name: importing the module would replace the
    function.

    Args:
        package: its `__name__`.
        homes: module in the package (`.engine.kinds`, with a dot, is one beside the package) to the
            names that it exports, each written as in an import statement: `gpt` or `Gpt as gpt`.
        renamed: old name of an export to its new one. It works for one more minor version, with a
            DeprecationWarning, and is in neither `__dir__` nor `__all__`.
        open_to_others: whether installed packages add names, by entry points whose group is the
            package. A name of the package itself wins.
    """
    origins = {}
    for module, names in homes.items():
        for text in names:
            attribute, _, alias = text.partition(" as ")
            origins[alias or attribute] = resolve_name(f".{module}", package), attribute

    def getattribute(name: str) -> Any:
        new = (renamed or {}).get(name)
        if new is not None:
            notice = f"{package}.{name} will be removed in the next minor version"
            warnings.warn(f"{notice}; write {package}.{new}", DeprecationWarning, stacklevel=2)
            name = new
        if name not in origins:
            # pytest asks each module that a test module has imported for private names, which is no
            # reason to read the metadata of all that is installed.
            public = not name.startswith("_")
            if open_to_others and public:
                for entry_point in entry_points(group=package, name=name):
                    return entry_point.load()
            offered = listed() if public else sorted(origins)
            raise AttributeError(
                f"module {package!r} has no attribute {name!r}; it has {', '.join(offered)}"
            )
        module, attribute = origins[name]
        return getattr(import_module(module), attribute)

    def listed() -> list[str]:
        others = {point.name for point in entry_points(group=package)} if open_to_others else ()
        return sorted({*origins, *others})

    return getattribute, listed
