"""Make the page's first lines (date, commit, torch, device) and its table of settings."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from pytest_precision.report.cell_result import CellResult

COMMIT_CHARACTERS = 12
"""Characters of a commit that are shown; report.json has all."""


def run_facts(environment: Mapping[str, Any]) -> list[str]:
    """Return lines on date, commit and machine of each run, and one on torch and the device."""
    runs = sorted(environment.get("runs", []), key=lambda run: str(run["date"]))
    # Shards of one commit began within minutes: the first one tells.
    dates: dict[str, str] = {}
    for run in runs:
        dates.setdefault(_checkout(run), str(run["date"]))
    lines = [" · ".join(filter(None, (_date(date), checkout))) for checkout, date in dates.items()]
    return [*lines, " · ".join(filter(None, (_torch(environment), _device(environment))))]


def side_facts(cells: Iterable[CellResult]) -> list[str]:
    """Return a line on each of two recordings that were compared; none of other reports."""
    if len(comparisons := [check for cell in cells for check in cell.checks]) != 1:
        return []
    recorded = comparisons[0].entry.get("recorded", {})
    return [f"{side}: {_recorded(facts)}" for side, facts in recorded.items()]


def _recorded(facts: Mapping[str, Any]) -> str:
    revision = facts["revision"].removesuffix("-dirty")
    commit = f"commit {revision[:COMMIT_CHARACTERS]}" if revision else ""
    changed = ", with uncommitted changes" if revision != facts["revision"] else ""
    words = shlex.join([facts["script"], *facts["arguments"]])
    return " · ".join(filter(None, (words, commit + changed, _date(facts["date"]))))


def _checkout(run: Mapping[str, Any]) -> str:
    parts = []
    if "commit" in run:
        branch = f" on {run['branch']}" if "branch" in run else ""
        changed = ", with uncommitted changes" if run.get("dirty") else ""
        parts = [f"commit {run['commit'][:COMMIT_CHARACTERS]}{branch}{changed}"]
    return " · ".join([*parts, *([f"host {run['host']}"] if "host" in run else [])])


def _date(date: str) -> str:
    """Format an ISO 8601 date as a readable date in UTC, to the minute."""
    return f"{date[:16].replace('T', ' ')} UTC"


def _torch(environment: Mapping[str, Any]) -> str:
    version = environment.get("versions", {}).get("torch", "")
    return f"torch {version}" if version else ""


def _device(environment: Mapping[str, Any]) -> str:
    """Return the names of the GPUs that ranks used; without ranks, the requested device."""
    ranks = environment.get("ranks", [])
    names = dict.fromkeys(rank.get("gpu", "CPU") for rank in ranks)
    device = str(environment.get("device", ""))
    return ", ".join(names) or ("" if device == "auto" else device)


class PageSettings(NamedTuple):
    """The versions, torch settings and environment variables on which results depend.

    Attributes:
        session: name to value: versions, platform, device, options.
        alike: name to value, the same on all ranks.
        unlike: name to its value in each of `ranks`, where they are not the same.
    """

    session: list[tuple[str, str]]
    alike: list[tuple[str, str]]
    unlike: list[tuple[str, list[str]]]


def read_environment(environment: Mapping[str, Any]) -> PageSettings:
    """Return a report's versions, options and rank settings in the order of display."""
    session = [
        *environment.get("versions", {}).items(),
        ("platform", environment.get("platform", "")),
        ("device", environment.get("device", "")),
        ("world sizes", ", ".join(map(str, environment.get("world_sizes", [])))),
        *((f"option {name}", _text(v)) for name, v in environment.get("flags", {}).items()),
    ]
    ranks = environment.get("ranks", [])
    names = dict.fromkeys(name for rank in ranks for name in rank)
    values = {name: [rank.get(name, "not set") for rank in ranks] for name in names}
    return PageSettings(
        [(name, value) for name, value in session if value],
        [
            (name, rank_values[0])
            for name, rank_values in values.items()
            if len({*rank_values}) == 1
        ],
        [(name, rank_values) for name, rank_values in values.items() if len({*rank_values}) > 1],
    )


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
