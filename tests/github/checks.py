"""The tools that look at a workflow or an action before GitHub does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCHEMAS = {
    "action": "github-actions",
    "dependabot": "dependabot",
    "config": "github-issue-config",
    "ISSUE_TEMPLATE": "github-issue-forms",
}
"""The name of a file, or of its folder, to its schema; all others are workflows."""


def schema_of(file: Path) -> str:
    """Return the name of the schema that a file has to follow."""
    return SCHEMAS.get(file.stem) or SCHEMAS.get(file.parent.name, "github-workflows")


def checks(file: Path, among: Iterable[Path] = ()) -> list[str]:
    """Return the names of the tools that find something, after printing what.

    Args:
        file: a workflow, an action or one of the other files of `SCHEMAS`.
        among: the files of the repository, of which a tool sees all of a kind in one call, and this
            one alone if it finds something.
    """
    schema = schema_of(file)
    together = sorted(other for other in among if schema_of(other) == schema)
    commands: dict[str, list[str]] = {
        "check-jsonschema": ["--builtin-schema", f"vendor.{schema}"],
        "zizmor": ["--offline", "--no-progress", "--min-severity", "medium"],
        "actionlint": [],
    }
    if schema != "github-workflows":
        del commands["actionlint"]  # it knows nothing else
    if file.parent.name == "ISSUE_TEMPLATE":
        del commands["zizmor"]  # nothing of it runs
    return [
        name
        for name, arguments in commands.items()
        if not (file in together and all_well(name, *arguments, *together))
        and not well(name, *arguments, file)
    ]


@cache
def all_well(name: str, *arguments: str | Path) -> bool:
    """Return whether a tool finds nothing in files that nobody changes; it reads them once."""
    return well(name, *arguments)


def well(name: str, *arguments: str | Path) -> bool:
    """Return whether a tool finds nothing."""
    program = shutil.which(name, path=str(Path(sys.executable).parent))
    assert program, f"{name} is missing: pip install -e .[dev]"
    found = subprocess.run([program, *arguments], capture_output=True, cwd=ROOT, text=True)
    print(found.stdout, found.stderr)
    return found.returncode == 0
