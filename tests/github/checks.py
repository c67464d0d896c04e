"""The tools that look at a workflow or an action before GitHub does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

SCHEMAS = {
    "action": "github-actions",
    "dependabot": "dependabot",
    "config": "github-issue-config",
    "ISSUE_TEMPLATE": "github-issue-forms",
}
"""The name of a file, or of its folder, to its schema; all others are workflows."""


def checks(file: Path) -> list[str]:
    """Return the names of the tools that find something, after printing what."""
    schema = SCHEMAS.get(file.stem) or SCHEMAS.get(file.parent.name, "github-workflows")
    commands: dict[str, list[str | Path]] = {
        "check-jsonschema": ["--builtin-schema", f"vendor.{schema}", file],
        "zizmor": ["--offline", "--no-progress", "--min-severity", "medium", file],
        "actionlint": [file],
    }
    if schema != "github-workflows":
        del commands["actionlint"]  # it knows nothing else
    if file.parent.name == "ISSUE_TEMPLATE":
        del commands["zizmor"]  # nothing of it runs
    return [name for name, arguments in commands.items() if not well(name, *arguments)]


def well(name: str, *arguments: str | Path) -> bool:
    """Return whether a tool finds nothing."""
    program = shutil.which(name, path=str(Path(sys.executable).parent))
    assert program, f"{name} is missing: pip install -e .[dev]"
    found = subprocess.run([program, *arguments], capture_output=True, cwd=ROOT, text=True)
    print(found.stdout, found.stderr)
    return found.returncode == 0
