"""The result of one parity check as plain data, as it stands under `cells` in report.json."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from pytest_precision._visible import visible
from pytest_precision.parity.culprit import Culprit
from pytest_precision.parity.figures import DEFAULT_FIGURES
from pytest_precision.parity.plain_data import PlainElement, as_plain, plain_element

OUTCOMES = ("pass", "fail", "drift", "vacuous", "skip", "error")


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first tensor, in causal order, that differs by more than its criterion allows.

    Attributes:
        op: index of the operation in the sequence; -1 is the state before the first one.
        step: train step, from 1; 0 before the first one.
        phase: phase of the step after which the tensors were observed, or `init`.
        kind: what the tensors are.
        name: the logical tensor's name.
        rank: the candidate's rank that holds the element, None where every rank does.
        index: of the first element beyond the criterion, None where no element is to blame.
        candidate: the element, a complex one as text such as `(3+1j)`, or, where no element is to
            blame, the property that differs.
        reference: the same of the reference.
        ulp: distance of the worst element in units in the last place, None where it has none.
        rel_l2: norm of the difference over the norm of the reference; like `ulp` None where nothing
            differs but NaN and infinities.
        mismatched: share of elements whose bytes differ, 0 to 1.
        signature: what kind of error it looks like, in words.
        error: the same as one word of `signature.ERRORS`, or the problem where it is none of
            values; empty where nothing stands out.
        evidence: `looked_at`, the number of tensors of the kind that differ at that moment, and
            `likewise`, the names of the others of them that look the same.
    """

    op: int
    step: int
    phase: str
    kind: str
    name: str
    rank: int | None
    index: tuple[int, ...] | None
    candidate: PlainElement
    reference: PlainElement
    ulp: int | None
    rel_l2: float | None
    mismatched: float | None
    signature: str
    error: str
    evidence: dict[str, Any]

    def __post_init__(self) -> None:
        for name in _ELEMENTS:
            object.__setattr__(self, name, plain_element(getattr(self, name)))


_ELEMENTS = ("candidate", "reference", "ulp", "rel_l2", "mismatched")
"""What of a divergence comes from elements of tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """The outcome of a parity check, such as `fail`, with its reason and details.

    Attributes:
        outcome: one of `OUTCOMES`.
        reason: one line; empty for a pass.
        gate: name of the gate that refuses the check; empty for a pass.
        in_part: whether a pass is one under a tolerance, without kinds that the test left out, or
            of a bare cell.
        details: lines below the reason; of a pass, how two recordings were not made alike.
        divergence: the first one, where two sides differ.
        culprit: the operation that made the first wrong value, where it was looked for and found.
        explained: what one side alone shows to be wrong by itself, which may be the cause.
        brief: those of `details` that show it at a glance.
        figures: those that the gate has found, by name, in place of the check's.
    """

    outcome: str = "pass"
    reason: str = ""
    gate: str = ""
    in_part: bool = False
    details: tuple[str, ...] = ()
    divergence: Divergence | None = None
    culprit: Culprit | None = None
    explained: tuple[str, ...] = ()
    brief: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)


MORE = "-v shows the figures, the bounds that would pass, and what is not compared"
"""The last line of what is shown of a divergence at a glance."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of one `parity.check`: what was compared, the outcome, and what was measured.

    Each figure is an attribute, too: `verdict.curves` is `verdict.figures["curves"]`, or None.

    Attributes:
        nodeid: pytest's id of the test.
        axes: axis name to value.
        candidate: import path of the layout under test.
        reference: import path of the layout that it must agree with.
        workload: import path of the workload.
        criterion: the criteria in words.
        ruling: how the check ends.
        command: the command that makes the check again.
        closing: lines that end the failure message; how to repeat the check, unless given.
        figures: name of what was counted and measured, such as `curves`, to plain data; see
            `DEFAULT_FIGURES`, and `report/schema.json` for what each holds.
    """

    nodeid: str
    axes: dict[str, Any]
    candidate: str
    reference: str
    workload: str
    criterion: str
    ruling: Ruling
    command: str = ""
    closing: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        """Return a figure by its name, such as `curves`; raise AttributeError for other names."""
        if name not in DEFAULT_FIGURES:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return self.figures.get(name, DEFAULT_FIGURES[name])

    @property
    def outcome(self) -> str:
        """Return the check's outcome: `pass`, `fail`, `drift`, `vacuous`, `skip` or `error`."""
        return self.ruling.outcome

    @property
    def status(self) -> str:
        """Return the outcome, or `partial` for a pass with a tolerance or with tensors left out."""
        return "partial" if self.ruling.in_part else self.outcome

    @property
    def gate(self) -> str | None:
        """Return the name of the gate, a stage of the check, that did not pass; None on a pass."""
        return self.ruling.gate or None

    @property
    def divergence(self) -> Divergence | None:
        """Return the first tensor that differs too much; None if the outcome has another reason."""
        return self.ruling.divergence

    @property
    def culprit(self) -> Culprit | None:
        """Return the operation that made the first wrong value; None where it is not known."""
        return self.ruling.culprit

    @property
    def reason(self) -> str:
        """Return the first line of the failure message; empty on a pass."""
        return "" if self.outcome == "pass" else f"{visible(cell_of(self.nodeid))}: {self.headline}"

    @property
    def headline(self) -> str:
        """Return the first line of the failure message without the test's parameters."""
        word = "" if self.outcome == "fail" else f"{self.outcome}: "
        return visible(f"{word}{self.ruling.reason}")

    @property
    def details(self) -> tuple[str, ...]:
        """Return the failure's lines below the first; on a pass, how run environments differ."""
        if self.outcome == "pass":
            return self.ruling.details
        lines = (
            *self._cause,
            f"candidate  {self.candidate}",
            f"reference  {self.reference}",
            f"criterion  {self.criterion}",
            *self.ruling.details,
            *self._next_steps,
        )
        return _indented(lines)

    @property
    def brief(self) -> tuple[str, ...]:
        """Return a short failure message: where candidate and reference differ, what to do next."""
        if not self.ruling.brief:
            return ()
        return _indented((*self._cause, *self.ruling.brief, "", *self._next_steps, MORE))

    @property
    def _next_steps(self) -> tuple[str, ...]:
        return self.closing or (f"Repeat with: {self.repeat}",)

    @property
    def _cause(self) -> tuple[str, ...]:
        """Return what one side shows to be wrong by itself, then the line of the first error."""
        culprit = () if self.culprit is None else (self.culprit.text, *self.culprit.quoted)
        return (*self.ruling.explained, *culprit)

    @property
    def repeat(self) -> str | None:
        """Return the command that runs the check again; None for a pass."""
        if self.outcome == "pass":
            return None
        return self.command or again(self.nodeid)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as plain data for report.json, which xdist can send; see `as_plain`."""
        divergence = None if self.divergence is None else asdict(self.divergence)
        culprit = None if self.culprit is None else self.culprit.as_dict()
        facts = {name: getattr(self, name) for name in FACTS}
        findings = dict(zip(FINDINGS, (self.details, divergence, culprit), strict=True))
        data = facts | findings | DEFAULT_FIGURES | dict(self.figures)
        return {name: as_plain(value) for name, value in data.items() if value is not None}


FACTS = (
    "nodeid",
    "axes",
    "candidate",
    "reference",
    "workload",
    "criterion",
    "outcome",
    "status",
    "gate",
    "reason",
    "repeat",
)
"""What of a verdict stands in report.json beside what it found and its figures."""

FINDINGS = ("details", "divergence", "culprit")
"""What a verdict found, as it stands in report.json."""


def _indented(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(visible(f"  {line}") for line in lines)


def cell_of(nodeid: str) -> str:
    """Return the bracketed parameters of a node id; the whole id if it has none."""
    name = nodeid.partition("::")[2]  # a bracket in the path does not start any
    return name.partition("[")[2].removesuffix("]") or nodeid


def again(*nodeids: str, options: str = "") -> str:
    """Return a pytest command that reruns the tests of these node ids, with further options."""
    words = ("pytest --precision-matrix", options, *map(shlex.quote, nodeids))
    return " ".join(filter(None, words))
