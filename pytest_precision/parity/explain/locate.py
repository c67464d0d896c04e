"""Locate the first divergence: a finding as the plain data of a verdict."""

from __future__ import annotations

from typing import Any

from pytest_precision.parity.compare.divergences import ONE_SIDED
from pytest_precision.parity.explain import wording
from pytest_precision.parity.explain.diagnosis import Diagnosis
from pytest_precision.parity.verdict import Divergence


def locate(diagnosis: Diagnosis) -> Divergence:
    """Return where a finding is, what both sides have there and what the error looks like."""
    finding = diagnosis.finding
    moment = finding.pair.moment
    pair = finding.pair
    statistics = None if finding.difference is None else finding.difference.statistics
    ours: Any = None
    theirs: Any = None
    index = None if statistics is None else statistics.first
    if statistics is not None:
        ours, theirs = statistics.candidate_first, statistics.reference_first
    elif finding.problem in ("dtype", "shape"):
        ours, theirs = wording.property_of(finding)
    elif finding.problem in ONE_SIDED:
        ours, theirs = ("absent", "present")[:: 1 if finding.problem == "missing" else -1]
    measured = statistics if statistics is not None and statistics.measured else None
    return Divergence(
        op=moment.op,
        step=moment.step,
        phase=moment.phase,
        kind=pair.kind,
        name=pair.name,
        rank=wording.rank_of(finding, index or ()) if index is not None else pair.rank,
        index=index,
        candidate=ours,
        reference=theirs,
        ulp=None if measured is None else measured.max_ulp,
        rel_l2=None if measured is None else measured.rel_l2,
        mismatched=None if statistics is None else statistics.mismatched / statistics.numel,
        signature=diagnosis.signature,
        error=diagnosis.error,
        evidence={"looked_at": diagnosis.looked_at, "likewise": list(diagnosis.likewise)},
    )
