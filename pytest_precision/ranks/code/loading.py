"""Import a module by name, or by its file if the name is unknown or names another module.

pytest's `importlib` mode gives test modules names that cannot be imported elsewhere, and two test
modules may share a name. In a rank that is kept between tests, the file tells which one is meant.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from pytest_precision.ranks.code import rewriting
from pytest_precision.ranks.code.relocation import relocated


def load_module(name: str, file: str | None) -> ModuleType:
    """Import a module by name, or from its file if the name is not found or leads to another file.

    Args:
        name: dotted name, under which the module is in `sys.modules` afterwards.
        file: absolute path of its source in the controller; None for a module that has none.

    Raises:
        ImportError: it cannot be imported; an exception of the module itself passes through.
    """
    file = None if file is None else place_on_rank(file)
    loaded = sys.modules.get(name)
    if loaded is not None and (file is None or _same_file(getattr(loaded, "__file__", None), file)):
        return loaded
    if file is None:
        return importlib.import_module(name)
    importlib.invalidate_caches()
    try:
        spec = None if loaded is not None else importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a parent cannot be imported or is not a package
        spec = None
    if spec is not None and _same_file(spec.origin, file):
        return importlib.import_module(name)
    return _loaded_module(name, Path(file))


def place_on_rank(file: str) -> str | None:
    """Return where this rank has a file of the controlling process; None if it has no such file."""
    place = relocated(file)
    return place if place == file or os.path.isfile(place) else None


def _same_file(loaded_file: str | None, file: str) -> bool:
    return loaded_file is not None and os.path.realpath(loaded_file) == os.path.realpath(file)


def _loaded_module(name: str, file: Path) -> ModuleType:
    """Execute `file` as the module `name`, after its parent packages, and return the module."""
    is_package = file.name == "__init__.py"
    parent = name.rpartition(".")[0]
    if parent and parent not in sys.modules:
        _add_package(parent, file.parent.parent if is_package else file.parent)
    # multiprocessing uses this name for a script whose main part must not run.
    run_name = "__mp_main__" if name == "__main__" else name
    spec = importlib.util.spec_from_file_location(
        run_name,
        file,
        loader=rewriting.loader(run_name, str(file)),
        submodule_search_locations=[str(file.parent)] if is_package else None,
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = {module_name: sys.modules.get(module_name) for module_name in (name, run_name)}
    sys.modules.update({name: module, run_name: module})
    try:
        spec.loader.exec_module(module)
    except BaseException:
        for module_name, other in before.items():
            sys.modules.pop(module_name)
            if other is not None:
                sys.modules[module_name] = other
        raise
    return module


def _add_package(name: str, folder: Path) -> None:
    if (folder / "__init__.py").is_file():
        _loaded_module(name, folder / "__init__.py")
        return
    parent = name.rpartition(".")[0]
    if parent and parent not in sys.modules:
        _add_package(parent, folder.parent)
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
