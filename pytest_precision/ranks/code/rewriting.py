"""Rewrite asserts on a rank to show their values, in the same modules as pytest does.

While pytest imports them, it rewrites the asserts of test modules, of `conftest.py` and of modules
that plugins and suites register. A rank imports these modules itself and has neither pytest's
session nor its configuration. So a job lists the modules that pytest has rewritten, and the rank
rewrites the same ones.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from pytest_precision.ranks.code.bytecode import is_stale

REWRITTEN_PACKAGE = __name__.partition(".")[0]


def rewritten() -> frozenset[str]:
    """Return the modules of this process whose asserts pytest has rewritten."""
    hook = next(filter(_is_pytests, sys.meta_path), None)
    if hook is None:
        return frozenset()
    return frozenset(
        name
        for name, module in sys.modules.items()
        # pytest rewrites modules of plugins too; those of this plugin contain no tests.
        if getattr(module, "__loader__", None) is hook
        and name.partition(".")[0] != REWRITTEN_PACKAGE
    )


def rewrite(names: frozenset[str]) -> None:
    """Make pytest rewrite the asserts of the named modules when this process imports them."""
    if any(map(_is_pytests, sys.meta_path)):  # this is pytest's own process
        return
    _FINDER.names = names
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)


def loader(name: str, file: str) -> SourceFileLoader:
    """Return an import loader of `file` as module `name`, which rewrites asserts if requested."""
    return (_Rewriting if name in _FINDER.names else SourceFileLoader)(name, file)


class _Rewriting(SourceFileLoader):
    """An import loader that rewrites asserts, or takes rewritten bytecode from pytest's cache."""

    def get_code(self, fullname: str) -> CodeType:
        """Return the code of the module with rewritten asserts."""
        from _pytest.assertion import rewrite as pytests  # no public name

        path = self.get_filename(fullname)
        file = Path(path)
        bytecode_file = pytests.get_cache_dir(file) / (file.stem + pytests.PYC_TAIL)
        code = (
            None if is_stale(path, str(bytecode_file)) else pytests._read_pyc(file, bytecode_file)
        )
        if code is None:  # pytest could not write there, or the source has changed
            source = self.get_data(path)
            tree = ast.parse(source, path)
            pytests.rewrite_asserts(tree, source, path)
            code = compile(tree, path, "exec", dont_inherit=True)
        return code


class _Finder(MetaPathFinder):
    """An import finder that makes pytest rewrite the asserts of the modules in `names`."""

    names: frozenset[str] = frozenset()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the import spec of a module whose asserts must be rewritten; None for others."""
        spec = PathFinder.find_spec(name, path, target) if name in self.names else None
        if spec is None or spec.origin is None or type(spec.loader) is not SourceFileLoader:
            return None
        spec.loader = loader(name, spec.origin)
        return spec


_FINDER = _Finder()


def _is_pytests(finder: object) -> bool:
    return type(finder).__name__ == "AssertionRewritingHook"
