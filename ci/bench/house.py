"""What there is to know: files, statements, names, imports, and what the smallest cell executes.

    python ci/bench/house.py [--root DIR ...] [--json]

With several checkouts, a column for each.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import tomllib

PACKAGE = "pytest_precision"

WITHOUT_CONTENT = (
    "one own found given held kept made told seen asked wanted known there here what now"
)
SUBSTITUTES = "item items value values thing entry entries obj data result results x"
"""Words of bindings that say nothing, and those that replace them without saying more."""

QUIETLY = (
    *("-p", "house_cell", "-p", "no:cacheprovider", "-c", os.devnull, "-q"),
    *("--precision-matrix", "--precision-ranks=inline"),
)
"""Arguments of the session with one cell: no files but its own."""

BARE = ("-o", "precision_probes=none")
"""Those of one without judgements; a release that lacks them judges all the same."""


class Source:
    """The modules of a checkout, parsed.

    Args:
        root: folder of the checkout.

    Attributes:
        files: paths of the modules.
        modules: syntax trees by dotted name.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.files = sorted((root / PACKAGE).rglob("*.py"))
        self.modules = {self.name(file): ast.parse(file.read_text()) for file in self.files}

    def name(self, file: Path) -> str:
        """Return the dotted name of a module."""
        parts = file.relative_to(self.root).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    def room(self, name: str) -> str:
        """Return the folder or module right under the package that a module is in."""
        return name.split(".")[1] if "." in name else "__init__"

    def statements(self, tier: str | None = None) -> int:
        """Count statements, docstrings left out, of one tier or of all."""
        return sum(
            isinstance(node, ast.stmt) and not is_docstring(node)
            for name, tree in self.modules.items()
            if tier in (None, self.tier(name))
            for node in ast.walk(tree)
        )

    @cached_property
    def tiers(self) -> dict[str, tuple[str, ...]]:
        """Return `probes` and `extras`, the names that the contract on tiers has of each."""
        linter = tomllib.loads((self.root / "pyproject.toml").read_text())["tool"]["importlinter"]
        contracts = [entry for entry in linter["contracts"] if entry["type"] == "tiers"]
        return {
            tier: tuple(name for contract in contracts for name in contract[tier])
            for tier in ("probes", "extras")
        }

    def tier(self, name: str) -> str:
        """Return the tier of a module: `core`, `probes` or `extras`."""
        for tier, roots in self.tiers.items():
            if any(f"{name}.".startswith(f"{root}.") for root in roots):
                return tier
        return "core"

    def imports_of_other_tiers(self) -> int:
        """Count the imports of probes and extras by the core."""
        return sum(
            self.tier(importer) == "core" != self.tier(imported)
            for importer, imported in self.imports()
        )

    def bindings(self) -> list[str]:
        """Return the name of each variable, parameter and field that is bound."""
        return [name for tree in self.modules.values() for name in bound(tree)]

    def words_of_docs(self) -> int:
        """Count the words of the documentation, README and changelog included."""
        pages = [*(self.root / "docs").rglob("*.md"), *self.root.glob("*.md")]
        return sum(len(page.read_text().split()) for page in pages)

    def imports(self) -> set[tuple[str, str]]:
        """Return (module, module that it imports) within the package.

        Imports in functions count; those that only a type checker sees do not.
        """
        pairs = set()
        for name, tree in self.modules.items():
            for node in executed(tree):
                for target in self._targets(name, node):
                    if target != name:
                        pairs.add((name, target))
        return pairs

    def _targets(self, name: str, node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in self.modules)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in self.modules else str(node.module)

    def arrows(self) -> set[tuple[str, str]]:
        """Return (room, room that it imports)."""
        rooms = {(self.room(a), self.room(b)) for a, b in self.imports()}
        return {(a, b) for a, b in rooms if a != b and b != "__init__"}

    def homes(self) -> dict[str, set[str]]:
        """Return the modules outside `commands` that define each public name at their top."""
        homes: dict[str, set[str]] = defaultdict(set)
        for module, tree in self.modules.items():
            for name in top_names(tree) if self.room(module) != "commands" else ():
                if not name.startswith("_"):
                    homes[name].add(module)
        return homes

    def exported(self) -> dict[str, set[str]]:
        """Return module to the names in its `__all__`, which a user may import from it."""
        return {
            name: set(ast.literal_eval(node.value))
            for name, tree in self.modules.items()
            for node in tree.body
            if isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "__all__"
            and isinstance(node.value, (ast.List, ast.Tuple))
        }

    def public_names(self) -> int:
        """Count the names that a user may import."""
        return sum(map(len, self.exported().values()))

    def options(self) -> int:
        """Count the options of the command line; those that are an ini key alone are none."""
        return sum(
            not any(word.arg == "instead" for word in getattr(row, "keywords", ()))
            for name, tree in self.modules.items()
            if self.room(name) == "options"
            for node in tree.body
            if isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "OPTIONS"
            and isinstance(node.value, ast.Tuple)
            for row in node.value.elts
        )

    def concepts(self) -> int:
        """Count the rows of the glossary."""
        glossary = (self.root / "docs/reference/glossary.md").read_text()
        return len(re.findall(r"^(?:\| (?!-|word|term)|- \*\*|\*\*|## )", glossary, re.MULTILINE))

    def internal_imports_of_tests(self) -> tuple[int, int]:
        """Return how many import lines of the tests name internal modules, and how many modules.

        What a module exports is public, as `pytest_precision.workloads.mlp` is.
        """
        exported = self.exported()
        named: Counter[str] = Counter()
        for file in (self.root / "tests").rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{PACKAGE}."):
                    names = {alias.name for alias in node.names}
                    if not names <= exported.get(str(node.module), set()):
                        named[str(node.module)] += 1
        return named.total(), len(named)


def is_docstring(node: ast.stmt) -> bool:
    """Tell whether a statement is a string that stands alone."""
    return isinstance(node, ast.Expr) and isinstance(getattr(node.value, "value", None), str)


def executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below `tree` that run, which those under TYPE_CHECKING do not."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from executed(node)


def top_names(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module defines: functions, classes and assigned names."""
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def bound(tree: ast.Module) -> Iterator[str]:
    """Yield the names that a module binds to values."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name


def share(names: Iterable[str], words: str) -> str:
    """Return how many of the names are one of these words, in percent."""
    names = [name.strip("_") for name in names]
    return f"{sum(name in words.split() for name in names) / len(names):.2%}"


def circles(arrows: set[tuple[str, str]]) -> int:
    """Count the arrows that have to go until none of them is part of a circle."""
    left = set(arrows)
    removed = 0
    while True:
        graph: dict[str, set[str]] = defaultdict(set)
        for a, b in left:
            graph[a].add(b)
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle = error.args[1]
            left.discard((circle[1], circle[0]))
            removed += 1
        else:
            return removed


def bodies(source: Source) -> list[int]:
    """Return the lines of every function's body, without its docstring."""
    lengths = []
    for tree in source.modules.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                body = node.body[is_docstring(node.body[0]) :]
                if body:
                    lengths.append((body[-1].end_lineno or 0) - body[0].lineno + 1)
    return lengths


def cell(root: Path, *options: str) -> dict[str, int]:
    """Return what the smallest green cell executes, measured in a process of its own.

    Args:
        root: of the checkout.
        options: further ones of its session.
    """
    test = Path(__file__).with_name("house_cell.py")
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *QUIETLY, *options, f"--rootdir={folder}", str(test)],
            cwd=folder,
            env={
                **os.environ,
                "PYTHONPATH": f"{root}:{test.parent}",
                "HOUSE_FIGURES": str(figures),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        if ran.returncode:
            raise SystemExit(f"expected a green cell but got:\n{ran.stdout}{ran.stderr}")
        measured: dict[str, int] = json.loads(figures.read_text())
        return measured


def table(root: Path) -> dict[str, object]:
    """Return every figure by its name."""
    source = Source(root)
    arrows = source.arrows()
    lines = {file: len(file.read_text().splitlines()) for file in source.files}
    homes = source.homes()
    stems = Counter(
        file.name
        for file in source.files
        if file.name != "__init__.py" and source.room(source.name(file)) != "commands"
    )
    imported, internal = source.internal_imports_of_tests()
    longest = bodies(source)
    bindings = source.bindings()
    return {
        "files": len(lines),
        "lines": sum(lines.values()),
        "statements": source.statements(),
        "statements of the core": source.statements("core"),
        "statements of probes": source.statements("probes"),
        "statements of extras": source.statements("extras"),
        "files of the core": sum(source.tier(name) == "core" for name in source.modules),
        "imports of probes and extras by the core": source.imports_of_other_tiers(),
        "bindings": len(bindings),
        "bindings without content": share(bindings, WITHOUT_CONTENT),
        "bindings with a substitute": share(bindings, SUBSTITUTES),
        "files above 300 lines": sum(count > 300 for count in lines.values()),
        "files below 60 lines": sum(count < 60 for count in lines.values()),
        "longest function body, lines": max(longest),
        "rooms": len({source.room(source.name(file)) for file in source.files}),
        "arrows between rooms": len(arrows),
        "arrows in circles": circles(arrows),
        "imports in circles": circles(source.imports()),
        "file names that occur twice or more": sum(count > 1 for count in stems.values()),
        "public names with several homes": sum(len(where) > 1 for where in homes.values()),
        "definitions called record": sum(name.lower() == "record" for name in definitions(source)),
        "options": source.options(),
        "public names": source.public_names(),
        "concepts in the glossary": source.concepts(),
        "words of docs": source.words_of_docs(),
        "tests: import lines that name internal modules": imported,
        "tests: internal modules named": internal,
        **cell(root),
        **{f"bare, {name}": number for name, number in cell(root, *BARE).items()},
    }


def definitions(source: Source) -> Iterator[str]:
    """Yield the name of every function, method and class."""
    for tree in source.modules.values():
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                yield node.name


def main() -> None:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    repository = Path(__file__).parents[2]
    parser.add_argument("--root", default=[repository], type=Path, nargs="+", help="checkouts")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    tables = [table(root.resolve()) for root in options.root]
    if options.json:
        print(json.dumps(tables, indent=1))
        return
    for name in tables[0]:
        print(f"{name:<52}", *(f"{figures[name]:>9}" for figures in tables))


if __name__ == "__main__":
    main()
