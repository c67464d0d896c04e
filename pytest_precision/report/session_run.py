"""Run: when a session ran, and of which commit, so that an old report does not pass for a new one.

The name of the machine is written only where the option `report_host` asks for it: a report is
often shown to others.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

GIT_STATUS = ("git", "--no-optional-locks", "status", "--porcelain=v2", "--branch", "-uno")
"""One command for commit, branch and changes; without locks, since somebody may be working."""

STATUS_SECONDS = 10
"""Time that git has to look at a large work tree."""

BRANCH_VARIABLES = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME")
"""Where CI says the branch: it checks out a commit and no branch."""


def session_run(root: Path | None, *, host: bool = False) -> dict[str, Any]:
    """Return the entry of a session in `runs` of report.json.

    Args:
        root: a folder of the repository that is tested; None where it is none that is checked out.
        host: whether to name the machine.
    """
    return {
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        **(_checkout(root, os.environ) if root else {}),
        **({"host": platform.node()} if host else {}),
    }


def _checkout(root: Path, variables: Mapping[str, str]) -> dict[str, Any]:
    """Return commit, branch and whether files are changed; nothing without git or a commit."""
    try:
        found = subprocess.run(
            GIT_STATUS, cwd=root, capture_output=True, text=True, timeout=STATUS_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = found.stdout.splitlines()
    told = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    commit, branch = told.get("branch.oid", "(initial)"), told.get("branch.head", "(detached)")
    if commit == "(initial)":
        return {}
    if branch == "(detached)":
        branch = next((variables[name] for name in BRANCH_VARIABLES if variables.get(name)), "")
    return {
        "commit": commit,
        **({"branch": branch} if branch else {}),
        "dirty": any(not line.startswith("#") for line in lines),
    }
