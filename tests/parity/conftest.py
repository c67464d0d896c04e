"""Traces made of made-up observations: what the ranks hold is written down rank by rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from pytest_precision import Observation
from pytest_precision.trace.header import Header
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.named_digests import XXH3
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.writer import TraceWriter

Recorded = Sequence[tuple[Moment, Sequence[Observation]]]


@pytest.fixture
def write_trace(tmp_path: Path) -> Callable[..., Trace]:
    """Write what each rank recorded, and read it back."""
    count = iter(range(1000))

    def write(
        *ranks: Recorded,
        unobservable: dict[str, str] | None = None,
        digests: bool = False,
        digest_name: str = XXH3,
    ) -> Trace:
        folder = tmp_path / f"trace{next(count)}"
        folder.mkdir()
        for rank, recorded in enumerate(ranks):
            with TraceWriter(folder, rank, digests=digests, digest_name=digest_name) as writer:
                for moment, observations in recorded:
                    writer.add(moment, observations)
                writer.finish(Header(len(ranks), unobservable or {}, {}))
        return Trace(folder, len(ranks))

    return write
