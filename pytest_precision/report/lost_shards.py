"""Find the shards of a matrix that reports have, and those of which there is no report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from pytest_precision.report.status import count

MOST_LISTED = 8
"""Lost shards that a sentence lists."""


def shards_in(reports: Iterable[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return the shards whose cells are in reports, as (number from 1, number of shares).

    The list is empty if nobody divided the matrix.

    Args:
        reports: contents of report.json files, of one session or merged.
    """
    return sorted(set(chain.from_iterable(map(_shards, reports))))


def _shards(report: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    of_session = report["environment"].get("flags", {}).get("shard")
    for shard in (*report.get("shards", ()), of_session):
        match shard:
            case [int(number), int(shares)] if 1 <= number <= shares and shares > 1:
                yield number, shares


def say_lost(shards: Sequence[tuple[int, int]]) -> str:
    """Say of which shards there is no report; return an empty text if all are there."""
    sentences = []
    for shares in sorted({shares for _, shares in shards}):
        numbers = {number for number, of in shards if of == shares}
        lost = shares - len(numbers)
        if lost:
            missing = (number for number in range(1, shares + 1) if number not in numbers)
            listed = ", ".join(map(str, islice(missing, MOST_LISTED)))
            more = ", …" if lost > MOST_LISTED else ""
            sentences.append(
                f"there is no report of {lost} of {count(shares, 'shard')}: {listed}{more}"
            )
    return "; ".join(sentences)
