"""The tools that look at a workflow or an action before GitHub does."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def checks(file: Path) -> list[str]:
    """Return the names of the tools that find something, after printing what."""
    is_action = file.stem == "action"
    schema = "vendor.github-actions" if is_action else "vendor.github-workflows"
    commands: dict[str, list[str | Path]] = {
        "check-jsonschema": ["--builtin-schema", schema, file],
        "zizmor": ["--offline", "--no-progress", "--min-severity", "medium", file],
        "actionlint": [file],
    }
    if is_action:
        del commands["actionlint"]  # it knows workflows only
    return [name for name, arguments in commands.items() if not well(name, *arguments)]


def well(name: str, *arguments: str | Path) -> bool:
    """Return whether a tool finds nothing."""
    program = shutil.which(name, path=str(Path(sys.executable).parent))
    assert program, f"{name} is missing: pip install -e .[dev]"
    found = subprocess.run([program, *arguments], capture_output=True, cwd=ROOT, text=True)
    print(found.stdout, found.stderr)
    return found.returncode == 0
