"""Run facts: when, of which commit, on which torch and device, as the first lines of the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMMIT_CHARACTERS = 12
"""Characters of a commit that are shown; report.json has all."""


def run_facts(environment: Mapping[str, Any]) -> list[str]:
    """Return a line for each commit and machine that the report is of, and one for what ran it."""
    runs = sorted(environment.get("runs", []), key=lambda run: str(run["date"]))
    # Shards of one commit began within minutes: the first one tells.
    dates: dict[str, str] = {}
    for run in runs:
        dates.setdefault(_checkout(run), str(run["date"]))
    lines = [" · ".join(filter(None, (_date(date), what))) for what, date in dates.items()]
    return [*lines, " · ".join(filter(None, (_torch(environment), _device(environment))))]


def _checkout(run: Mapping[str, Any]) -> str:
    found = []
    if "commit" in run:
        branch = f" on {run['branch']}" if "branch" in run else ""
        changed = ", with uncommitted changes" if run.get("dirty") else ""
        found = [f"commit {run['commit'][:COMMIT_CHARACTERS]}{branch}{changed}"]
    return " · ".join([*found, *([f"host {run['host']}"] if "host" in run else [])])


def _date(date: str) -> str:
    """Return a date of ISO 8601 in UTC as people write it, to the minute."""
    return f"{date[:16].replace('T', ' ')} UTC"


def _torch(environment: Mapping[str, Any]) -> str:
    version = environment.get("versions", {}).get("torch", "")
    return f"torch {version}" if version else ""


def _device(environment: Mapping[str, Any]) -> str:
    """Return the names of the GPUs that ranks ran on; without ranks, what was asked for."""
    ranks = environment.get("ranks", [])
    names = dict.fromkeys(own.get("gpu", "CPU") for own in ranks)
    asked = str(environment.get("device", ""))
    return ", ".join(names) or ("" if asked == "auto" else asked)
