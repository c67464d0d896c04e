"""Describe what made a result: package versions, and date, commit and branch of the session.

No package is imported for its version. The name of the machine is written only where the option
`report_host` asks for it: a report is often shown to others.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pytest_precision._git import git
from pytest_precision.errors import RevisionError

PACKAGES = ("pytest-precision", "pytest", "torch", "numpy", "transformer-engine")


def environment(*, device: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry `environment` of report.json: versions, platform, device and options.

    Args:
        device: device that the ranks run on.
        flags: the plugin's options and their values, as plain data.
    """
    versions = {"python": platform.python_version()}
    versions.update(
        {name: package_version for name in PACKAGES if (package_version := version_of(name))}
    )
    return {
        "versions": versions,
        "platform": platform.platform(),
        "device": device,
        "flags": dict(flags),
    }


def differing(sides: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return, for candidate and reference, the settings and versions in which they differ."""
    names = {name for settings in sides.values() for name in settings}
    unlike = {
        name for name in names if len({settings.get(name) for settings in sides.values()}) > 1
    }
    return {
        side: {name: value for name, value in settings.items() if name in unlike}
        for side, settings in sides.items()
        if unlike
    }


def earlier_of(flags: Mapping[str, Any]) -> str:
    """Say with which commit and interpreter each side was also compared; empty if with none.

    Args:
        flags: the plugin's options, as `environment` has them.
    """
    words = {"against": "at the commit", "against_python": "under the interpreter"}
    named = [f"{text} {flags[name]}" for name, text in words.items() if flags.get(name)]
    return f"each side was also compared with itself {' '.join(named)}" if named else ""


def version_of(package: str) -> str:
    """Return the version of an installed package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


GIT_STATUS = ("status", "--porcelain=v2", "--branch", "-uno")
"""One command of git for commit, branch and changes."""

STATUS_SECONDS = 10
"""Time that git has to look at a large work tree."""

BRANCH_VARIABLES = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME")
"""Where CI says the branch: it checks out a commit and no branch."""


def session_run(root: Path | None, *, host: bool = False) -> dict[str, Any]:
    """Return date, commit and, if asked, host of this session, for `runs` of report.json.

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
    """Return commit, branch and whether tracked files changed; empty without git."""
    try:
        lines = git(root, *GIT_STATUS, seconds=STATUS_SECONDS).splitlines()
    except RevisionError:
        return {}
    headers = dict(line[2:].split(" ", 1) for line in lines if line.startswith("# branch."))
    commit, branch = (
        headers.get("branch.oid", "(initial)"),
        headers.get("branch.head", "(detached)"),
    )
    if commit == "(initial)":
        return {}
    if branch == "(detached)":
        branch = next((variables[name] for name in BRANCH_VARIABLES if variables.get(name)), "")
    return {
        "commit": commit,
        **({"branch": branch} if branch else {}),
        "dirty": any(not line.startswith("#") for line in lines),
    }
