"""A tensor that differs, and how many of its kind do."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytest_precision.parity.compare.logical_tensor import Fault
from pytest_precision.parity.compare.pairs import Pair
from pytest_precision.parity.compare.statistics import Statistics
from pytest_precision.parity.compare.tensors import Difference

ONE_SIDED = ("missing", "extra")
"""Problems of a tensor that one side alone has."""


@dataclass(frozen=True)
class Finding:
    """A tensor that differs between candidate and reference by more than its criterion allows.

    Attributes:
        pair: the two sides.
        problem: `values`, `dtype`, `shape`, `missing` in the candidate, `extra` in it, or the
            problem of a `Fault`.
        difference: between the two sides, or between two ranks of one; None for a missing tensor.
            If the dtypes differ, it is that of the values where these can be compared and differ.
        fault: fault of the side whose pieces do not form a whole, None where both do.
        faulty_side: `candidate` or `reference`, where there is a fault.
    """

    pair: Pair
    problem: str
    difference: Difference | None = None
    fault: Fault | None = None
    faulty_side: str = ""

    @property
    def is_one_sided(self) -> bool:
        """Return whether one side alone has the tensor."""
        return self.problem in ONE_SIDED

    @property
    def statistics(self) -> Statistics | None:
        """Return how far apart the values are; None where these cannot be compared."""
        return None if self.difference is None else self.difference.statistics


@dataclass
class Tally:
    """The results of comparing all tensors of one kind, such as `grad`, within one operation.

    Attributes:
        names: of the tensors of all pairs that were compared, in their order.
        within: those that are not equal bit for bit, but within their criterion: the tensor's name
            and how far apart its values are.
        findings: the pairs that violate their criterion.
        dtypes: dtypes of the candidate and of the reference.
    """

    names: list[str] = field(default_factory=list)
    within: list[tuple[str, Statistics]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    dtypes: set[tuple[str, str]] = field(default_factory=set)

    @property
    def numbers(self) -> tuple[int, int]:
        """Return how many of the tensors the candidate has, and how many the reference has."""
        problems = [finding.problem for finding in self.findings]
        lacks, exceeds = (len(self.names) - problems.count(problem) for problem in ONE_SIDED)
        return lacks, exceeds
