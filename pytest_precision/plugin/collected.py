"""Find what pytest imported to collect a test, in its order, which ranks import as well."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.code.installed import users_file

MAIN = frozenset({"__main__", "__mp_main__"})
"""Names of a program, which ranks must not run once more."""


def collected_for(item: pytest.Item) -> tuple[ImportPath, ...]:
    """Return the conftest.py files that apply to a test, plugins of the user, and its module."""
    modules = [*_plugins(item), getattr(item, "module", None)]
    named = {
        ImportPath(module.__name__, "", module.__file__): None
        for module in modules
        if isinstance(module, ModuleType) and module.__file__ and module.__name__ not in MAIN
    }
    return tuple(named)


def _plugins(item: pytest.Item) -> Iterator[ModuleType]:
    for _, plugin in item.config.pluginmanager.list_name_plugin():
        if not isinstance(plugin, ModuleType) or not plugin.__file__:
            continue
        file = Path(plugin.__file__)
        if file.name == "conftest.py":
            if file.parent in item.path.parents:
                yield plugin
        elif users_file(plugin) is not None:
            yield plugin
