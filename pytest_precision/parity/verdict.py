"""Verdict: the outcome of one cell and check, as plain data: an entry of `cells` in report.json."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from pytest_precision._visible import visible

OUTCOMES = ("pass", "fail", "vacuous", "skip", "error")


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first pair of tensors, in causal order, beyond its criterion.

    Attributes:
        op: index of the operation in the sequence; -1 is the state before the first one.
        step: train step, from 1; 0 before the first one.
        phase: phase of the step after which the tensors were observed, or `init`.
        kind: what the tensors are.
        name: the logical tensor's name.
        rank: the candidate's rank that holds the element, None where every rank does.
        index: of the first element beyond the criterion, None where no element is to blame.
        candidate: the element, or, where no element is to blame, the property that differs.
        reference: likewise.
        ulp: distance of the worst element in units in the last place, None where it has none.
        rel_l2: norm of the difference over the norm of the reference; like `ulp` None where nothing
            differs but NaN and infinities.
        mismatched: share of elements whose bytes differ, 0 to 1.
        signature: what kind of error it looks like.
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
    candidate: float | str | None
    reference: float | str | None
    ulp: int | None
    rel_l2: float | None
    mismatched: float | None
    signature: str
    evidence: dict[str, Any]


class Ruling(NamedTuple):
    """Why a check does not pass.

    Attributes:
        outcome: one of `OUTCOMES`, but not `pass`.
        reason: one line.
        details: lines below it.
        divergence: the first one, where two sides differ.
        spread: how it spreads, as `Verdict.spread`.
        histogram: of the tensor that diverges first, as `Verdict.histogram`.
        needed: as `Verdict.needed`, where the divergence was recorded again as values.
        identities: as `Verdict.identities`, likewise.
        brief: those of `details` that show it at a look.
    """

    outcome: str
    reason: str
    details: tuple[str, ...] = ()
    divergence: Divergence | None = None
    spread: dict[str, Any] | None = None
    histogram: dict[str, Any] | None = None
    needed: dict[str, Any] | None = None
    identities: dict[str, Any] | None = None
    brief: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one `parity.check`.

    Attributes:
        nodeid: pytest's id of the test.
        axes: axis name to value.
        candidate: import path of the layout under test.
        reference: import path of the layout that it must agree with.
        workload: import path of the workload.
        criterion: the criteria in words.
        outcome: one of `OUTCOMES`.
        reason: one line, the first line of the failure; empty on a pass.
        observations: number of tensors compared.
        bytes: number of bytes that were compared, of one side.
        seconds: duration of the check.
        timing: seconds in which `candidate` and `reference` were recorded, again where a failure
            was looked into; one that was kept from another cell takes none.
        divergence: the first divergence, on a `fail` that has one.
        details: the lines below `reason` in the failure message; on a pass, how two recordings were
            not made alike.
        lost_updates: for `candidate` and `reference` over the whole run, where it was measured:
            `share` of the updates that left the effective weight as it was, `share_by_size`, where
            an update counts as much as it would have moved its weight, `absorbed`, the share of the
            updates' norm that the weights lack, the same of the `worst` tensor with its `name`, and
            `unmeasured`, tensor to reason.
        oracle: for `candidate` and `reference`, how their updates follow the rule that the workload
            declares, as `oracle.summary` says it.
        identities: for `candidate` and `reference`, how many tensors were looked at for each thing
            that must hold within a run, and the first one that contradicts it, as
            `Consistency.as_dict` returns it.
        curves: columns to plot, as long as `step`: `loss`, `lost_updates` and `absorbed`, each of
            `candidate` and `reference`.
        environment: of `candidate` and `reference`: versions, pins and variables that decide about
            the bits.
        left_out: kinds that were not compared, each with the reason; None where nothing was.
        spread: columns of the table of kinds by operations in `details`, as `spread.columns` makes
            them.
        histogram: elements of the tensor that diverges first, by their distance in units in the
            last place, as `histogram.histogram` counts them.
        needed: for each kind that is not equal bit for bit, also within its criterion, the smallest
            bounds that would have let it pass, as `needed.columns` makes them.
        unexercised: what the candidate's run never did, so that nothing is proved of it.
        mutants: known defects that were planted into a candidate that passed, as
            `mutation.mutants` lists them; None where that was not asked for.
        repeat: the command that makes the check again, unless it passed.
        brief: those of `details` that show a divergence at a look; not in report.json.
    """

    nodeid: str
    axes: dict[str, Any]
    candidate: str
    reference: str
    workload: str
    criterion: str
    outcome: str
    reason: str = ""
    observations: int = 0
    bytes: int = 0
    seconds: float = 0.0
    timing: dict[str, float] | None = None
    divergence: Divergence | None = None
    details: tuple[str, ...] = field(default=())
    lost_updates: dict[str, Any] | None = None
    oracle: dict[str, Any] | None = None
    identities: dict[str, Any] | None = None
    curves: dict[str, Any] | None = None
    environment: dict[str, dict[str, str]] | None = None
    left_out: dict[str, str] | None = None
    spread: dict[str, Any] | None = None
    histogram: dict[str, Any] | None = None
    needed: dict[str, Any] | None = None
    unexercised: list[str] | None = None
    mutants: dict[str, Any] | None = None
    repeat: str | None = None
    brief: tuple[str, ...] = ()

    def ruled(self, ruling: Ruling | None, figures: Mapping[str, Any], repeat: str = "") -> Verdict:
        """Return this verdict with the figures of its case and, if it does not pass, the ruling.

        Args:
            ruling: that of the first gate that the case did not pass; None for a pass.
            figures: fields of the verdict.
            repeat: the command that makes the check again; pytest's unless given.
        """
        verdict = replace(self, **figures)
        if ruling is None:
            return verdict
        repeat = repeat or again(self.nodeid)
        cell = self.nodeid.partition("[")[2].removesuffix("]") or self.nodeid
        lines = [
            f"  candidate  {self.candidate}",
            f"  reference  {self.reference}",
            f"  criterion  {self.criterion}",
            *(f"  {line}" for line in ruling.details),
            f"  Repeat with: {repeat}",
        ]
        word = "" if ruling.outcome == "fail" else f"{ruling.outcome}: "
        return replace(
            verdict,
            outcome=ruling.outcome,
            reason=visible(f"{cell}: {word}{ruling.reason}"),
            details=tuple(map(visible, lines)),
            brief=tuple(visible(f"  {line}") for line in ruling.brief),
            divergence=ruling.divergence,
            spread=ruling.spread,
            histogram=ruling.histogram,
            needed=ruling.needed or verdict.needed,
            identities=ruling.identities or verdict.identities,
            repeat=repeat,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of report.json: builtins only, so that xdist can send it."""
        data = asdict(self)
        data["details"] = list(self.details)
        del data["brief"]
        if self.divergence is not None and self.divergence.index is not None:
            data["divergence"]["index"] = list(self.divergence.index)
        return {name: value for name, value in data.items() if value is not None}


def again(nodeid: str, options: str = "") -> str:
    """Return the command that runs one cell, with further options."""
    return " ".join(filter(None, ("pytest --precision-matrix", options, shlex.quote(nodeid))))
