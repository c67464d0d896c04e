"""Compute the smallest tolerance that would have let each kind of tensor, as `grad`, pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pytest_precision.engine.kinds import causal_rank, lasting
from pytest_precision.parity.compare.differing import Finding, Tally
from pytest_precision.parity.compare.divergences import Judgement
from pytest_precision.parity.compare.statistics import Statistics
from pytest_precision.parity.recorded_case import RecordedCase
from pytest_precision.parity.words import aligned

ROOM = 2
"""Times what was needed: the share that a bound leaves for the next seed or machine.

Bounds of twice what a legitimate variation needs let none of 35 planted defects pass in fp32.
"""

ROOM_OF_NUMBERS = 4
"""Likewise of single numbers, such as the norm: one of each step says little of others."""

FLOOR = 2e-7
"""Relative error that a bound allows at least: a unit in the last place of fp32, rounded up.

Where the data of one run need less, those of the next may need it.
"""

FAR = 1_000_000
"""Units in the last place from which a table gives one digit."""


@dataclass
class Bounds:
    """The smallest tolerances under which all tensors of one kind, such as `grad`, would agree.

    Attributes:
        tensors: number of pairs whose bytes differ.
        rel: of `norm(rel=)`; infinite where a reference is zero.
        ulp: of `ulp(n)`.
        atol: of `close(atol=)`, with an `rtol` of 0.
        of: name of the tensor that needs the largest `rel`.
        numel: number of elements of the largest tensor.
        unbounded: why no bound lets the kind pass: what is wrong besides finite values.
    """

    tensors: int = 0
    rel: float = 0.0
    ulp: int = 0
    atol: float = 0.0
    of: str = ""
    numel: int = 0
    unbounded: set[str] = field(default_factory=set)

    def add(self, name: str, statistics: Statistics) -> None:
        """Widen the bounds until a tensor is within them."""
        self.tensors += 1
        if statistics.nan_mismatched or statistics.inf_mismatched or not statistics.measured:
            self.unbounded.add("NaN or infinities")
            return
        if statistics.rel_l2 > self.rel or not self.of:
            self.of = name
        self.numel = max(self.numel, statistics.numel)
        self.rel = max(self.rel, statistics.rel_l2)
        self.atol = max(self.atol, statistics.max_abs)
        if statistics.max_ulp is None:
            self.unbounded.add("values that are no floats")
        else:
            self.ulp = max(self.ulp, statistics.max_ulp)

    def fault(self, finding: Finding) -> None:
        """Count a tensor that fails without a measurable error, such as one of another shape."""
        self.tensors += 1
        problem = "digests alone" if finding.problem == "values" else finding.problem
        self.unbounded.add(problem)

    @property
    def call(self) -> str:
        """Return a tolerance with room to spare, such as `norm(rel=2e-6)`; empty if none passes."""
        if self.unbounded:
            return ""
        room = ROOM if self.numel > 1 else ROOM_OF_NUMBERS
        if self.rel * room < 1:
            return f"norm(rel={rounded_up(max(self.rel * room, FLOOR)):g})"
        return f"close(rtol=0, atol={rounded_up(self.atol * room):g})"


def bounds(judgement: Judgement) -> dict[str, Bounds]:
    """Return the smallest tolerances under which each kind of tensor would have passed."""
    bounds_by_kind: dict[str, Bounds] = {}
    for (kind, _), tally in judgement.spread.items():
        for name, statistics in measured_pairs(tally):
            bounds_by_kind.setdefault(kind, Bounds()).add(name, statistics)
        for finding in tally.findings:
            if _measured_statistics(finding) is None:
                bounds_by_kind.setdefault(kind, Bounds()).fault(finding)
    for kind in lasting("setting") & set(bounds_by_kind):
        bounds_by_kind[kind].unbounded = {"a setting is no result"}
    return {kind: bounds_by_kind[kind] for kind in sorted(bounds_by_kind, key=causal_rank)}


def measured_pairs(tally: Tally) -> Iterator[tuple[str, Statistics]]:
    """Yield name and error statistics of each pair of tensors that differs in values only."""
    yield from tally.within
    for finding in tally.findings:
        statistics = _measured_statistics(finding)
        if statistics is not None:
            yield finding.pair.name, statistics


def _measured_statistics(finding: Finding) -> Statistics | None:
    """Return a differing tensor's error statistics; None unless only its values differ."""
    return finding.statistics if finding.problem == "values" else None


def needed(case: RecordedCase) -> dict[str, Any] | None:
    """Return the tolerances that each kind of tensor of a check needs; see `required_figures`."""
    return required_figures(case.judgement)


def required_figures(judgement: Judgement) -> dict[str, Any] | None:
    """Return as dicts the tolerances that each kind of tensor needs; None if nothing differs."""
    tolerances = {
        kind: {"tensors": limits.tensors, **_figures(limits)}
        for kind, limits in bounds(judgement).items()
    }
    return tolerances or None


def _figures(limits: Bounds) -> dict[str, Any]:
    if limits.unbounded:
        return {"unbounded": sorted(limits.unbounded)}
    return {
        "rel_l2": limits.rel,
        "max_abs": limits.atol,
        "of": limits.of,
        "max_ulp": limits.ulp,
        "criterion": limits.call,
    }


def required_lines(judgement: Judgement) -> list[str]:
    """Return the lines of a table of the tolerances that each kind of tensor would have needed."""
    bounds_by_kind = bounds(judgement)
    rows = [["would pass", "norm(rel=)", "ulp", "close(atol=)", "largest in"]]
    rows += [[kind, *_cells(limits)] for kind, limits in bounds_by_kind.items()]
    return aligned(rows)


def _cells(limits: Bounds) -> Iterable[str]:
    if limits.unbounded:
        return "-", "-", "-", f"no bound: {', '.join(sorted(limits.unbounded))}"
    ulp = str(limits.ulp) if limits.ulp < FAR else f"{limits.ulp:.0e}"
    return f"{limits.rel:.2g}", ulp, f"{limits.atol:.2g}", limits.of


def rounded_up(value: float) -> float:
    """Round a number up to one significant digit."""
    if not value or not math.isfinite(value):
        return value
    unit = 10.0 ** math.floor(math.log10(value))
    return math.ceil(value / unit) * unit
