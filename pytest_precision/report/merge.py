"""Join the reports of several CI shards or machines into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

from pytest_precision.report.json_file import SCHEMA_VERSION
from pytest_precision.report.lost_shards import say_lost, shards_in

AXIS = "report"
"""The axis that tells cells apart which several reports have: those of two machines, say."""


def merge(reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Join the contents of several report.json files into one.

    If two of them have the same cell, all cells get one more axis with the name of their report.
    The result is not finished if there is no report of a shard of the same matrix.

    Args:
        reports: name to the content of report.json, as `read_report` returns it.
    """
    nodeids = {name: {entry["nodeid"] for entry in data["cells"]} for name, data in reports.items()}
    twice = any(count > 1 for count in Counter(chain.from_iterable(nodeids.values())).values())
    planned = [data["planned"] for data in reports.values()]
    shards = shards_in(reports.values())
    lost = bool(say_lost(shards))
    return {
        "schema": SCHEMA_VERSION,
        "finished": not lost and all(data["finished"] for data in reports.values()),
        "planned": None if lost or None in planned else sum(planned),
        **({"shards": [[*shard] for shard in shards]} if shards else {}),
        **_longest([data["seconds"] for data in reports.values() if "seconds" in data]),
        "environment": _environment([data["environment"] for data in reports.values()]),
        "cells": [
            {**entry, "axes": {**entry["axes"], **({AXIS: name} if twice else {})}}
            for name, data in reports.items()
            for entry in data["cells"]
        ],
    }


def _longest(seconds: Sequence[float]) -> dict[str, float]:
    """Return a dict with the longest duration as `seconds`; an empty one if none is known."""
    return {"seconds": max(seconds)} if seconds else {}


def _environment(environments: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = _joined(environments)
    merged["world_sizes"] = _distinct(
        chain.from_iterable(e.get("world_sizes", []) for e in environments)
    )
    for name in ("ranks", "runs"):
        if any(name in environment for environment in environments):
            merged[name] = _distinct(
                chain.from_iterable(environment.get(name, []) for environment in environments)
            )
    return merged


def _joined(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Join dicts of several reports: keep equal values, else join different ones as text."""
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(chain.from_iterable(mappings)):
        values = [mapping[name] for mapping in mappings if name in mapping]
        if all(isinstance(value, Mapping) for value in values):
            merged[name] = _joined(values)
        else:
            distinct = _distinct(values)
            merged[name] = distinct[0] if len(distinct) == 1 else " or ".join(map(str, distinct))
    return merged


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Return each value once, in order; values need not be hashable."""
    return list({repr(value): value for value in values}.values())
