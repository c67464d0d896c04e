"""Checks of loops, and what stands in their traces."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_precision import Cell, Parity, ParityError, Verdict
from pytest_precision.trace.reader import Trace

ParityIn = Callable[[Cell], Parity]
Recorded = Callable[..., Trace]


def failed(parity: Parity, *sides: Callable[..., None], **options: object) -> Verdict:
    """Return the verdict of a check that fails."""
    with pytest.raises(ParityError) as failure:
        parity.check(*sides, **options)  # type: ignore[arg-type]
    return failure.value.verdict


def named(trace: Trace, kind: str, step: int = 1) -> list[str]:
    """List the names of what was seen of a kind in a step, in order."""
    moments = [moment for moment in trace.moments if moment.step == step]
    return [e.name for m in moments for e in trace.entries(m) if e.kind == kind]


def values(trace: Trace, kind: str, name: str) -> list[float]:
    """List the sum of one tensor after each moment that shows it."""
    entries = [e for moment in trace.moments for e in trace.entries(moment)]
    return [float(trace.tensor(e).sum()) for e in entries if (e.kind, e.name) == (kind, name)]
