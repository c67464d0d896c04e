"""Name the tests that `ci/test --quick` runs: those that import what has changed.

    python ci/quick.py mirrored [--since REVISION]    the test file of each changed module
    python ci/quick.py importing [--since REVISION]   all files that import a changed module

A test file imports what its own imports name, and what the modules of `tests` that it imports name;
a name of a package counts as the modules of that package. What has changed is what differs from
REVISION, by default from where this branch left `main`, or from the last commit on `main` itself.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
PACKAGE = "pytest_precision"


def git(*words: str) -> str:
    """Return what a call of git prints; empty if it fails, as in a clone without `main`."""
    ended = subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, encoding="utf-8", check=False
    )
    return ended.stdout.strip() if ended.returncode == 0 else ""


def changed_files(since: str) -> list[Path]:
    """Return the files that differ from a revision, with those that git does not know yet."""
    base = since or git("merge-base", "HEAD", "origin/main") or git("merge-base", "HEAD", "main")
    if base in ("", git("rev-parse", "HEAD")) and not since:
        base = "HEAD" if git("status", "--porcelain") else "HEAD~1"
    names = git("diff", "--name-only", base).splitlines()
    names += git("ls-files", "--others", "--exclude-standard").splitlines()
    return [ROOT / name for name in dict.fromkeys(names)]


def module_of(path: Path) -> str:
    """Return the dotted name of a module of the package."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def imports_of(path: Path) -> frozenset[str]:
    """Return the dotted names that a file imports, in functions too, and what these may name."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


@cache
def helpers() -> dict[str, Path]:
    """Return the modules of `tests` and `fixtures` that tests import, by their name."""
    paths: dict[str, Path] = {}
    for folder in (TESTS, ROOT / "fixtures"):
        for path in folder.rglob("*.py"):
            if not path.name.startswith(("test_", "conftest")):
                paths[path.stem] = path
    return paths


def reached(path: Path, reached_files: frozenset[Path] = frozenset()) -> Iterator[str]:
    """Yield the names that a test file imports, also by the modules of `tests` that it imports."""
    for name in imports_of(path):
        yield name
        helper = helpers().get(name.partition(".")[0])
        if helper is not None and helper not in reached_files:
            yield from reached(helper, reached_files | {helper})


def mirrored(changed: list[Path]) -> list[Path]:
    """Return the test files that have changed, and those whose name is that of a changed module."""
    files = [path for path in changed if path.name.startswith("test_") and TESTS in path.parents]
    for path in changed:
        if ROOT / PACKAGE in path.parents:
            folder = TESTS / path.relative_to(ROOT / PACKAGE).parent
            files.append(folder / f"test_{path.stem.lstrip('_')}.py")
    return sorted({path for path in files if path.exists()})


def importing(changed: list[Path]) -> list[Path]:
    """Return the test files that import a changed module, of the package or of `tests`."""
    modules = {module_of(path) for path in changed if ROOT / PACKAGE in path.parents}
    stems = {path.stem for path in changed if path in helpers().values()}
    return sorted(path for path in TESTS.rglob("test_*.py") if (modules | stems) & {*reached(path)})


def main() -> None:
    """Print the files, one a line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("which", choices=("mirrored", "importing"))
    parser.add_argument("--since", default="", help="a revision of git")
    args = parser.parse_args()
    chosen = {"mirrored": mirrored, "importing": importing}[args.which]
    print(*(path.relative_to(ROOT) for path in chosen(changed_files(args.since))), sep="\n")


if __name__ == "__main__":
    main()
