"""Find the shards of a matrix that reports have, and those of which there is no report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from pytest_precision.report.status import count

Shard = tuple[int, int]
"""A runner's share of the cells: its number, from 1, and the number of shares."""

SHOWN = 8
"""Lost shards that a sentence lists."""


def shards_in(reports: Iterable[Mapping[str, Any]]) -> list[Shard]:
    """Return the shards whose cells are in reports; none where nobody divided the matrix.

    Args:
        reports: contents of report.json files, of one session or merged.
    """
    return sorted(set(chain.from_iterable(map(_shards, reports))))


def _shards(report: Mapping[str, Any]) -> Iterator[Shard]:
    own = report["environment"].get("flags", {}).get("shard")
    for shard in (*report.get("shards", ()), own):
        match shard:
            case [int(number), int(shares)] if 1 <= number <= shares and shares > 1:
                yield number, shares


def say_lost(shards: Sequence[Shard]) -> str:
    """Say of which shards there is no report; return an empty text if all are there."""
    sentences = []
    for shares in sorted({shares for _, shares in shards}):
        there = {number for number, of in shards if of == shares}
        lost = shares - len(there)
        if lost:
            numbers = (number for number in range(1, shares + 1) if number not in there)
            listed = ", ".join(map(str, islice(numbers, SHOWN)))
            more = ", …" if lost > SHOWN else ""
            sentences.append(
                f"there is no report of {lost} of {count(shares, 'shard')}: {listed}{more}"
            )
    return "; ".join(sentences)
