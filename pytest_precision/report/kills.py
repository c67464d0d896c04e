"""How many planted defects the checks of a session noticed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def kills(entries: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """Return how many defects were noticed, and how many were counted, of entries of checks."""
    planted = [entry["mutants"] for entry in entries if "mutants" in entry]
    killed = sum(len(one["killed"]) for one in planted)
    return killed, killed + sum(len(one["survived"]) for one in planted)
