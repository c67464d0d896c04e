"""Turn the first difference into plain data for the report, with a histogram of distances."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from torch import Tensor

from pytest_precision.parity.compare.bit_patterns import (
    FLOATS,
    bits,
    differ,
    spans,
    ulps,
    values_of_bits,
)
from pytest_precision.parity.compare.differing import ONE_SIDED, Finding
from pytest_precision.parity.compare.tensors import common_dtype
from pytest_precision.parity.culprit import Culprit
from pytest_precision.parity.explain import wording
from pytest_precision.parity.explain.diagnosis import Diagnosis, diagnose_tensor
from pytest_precision.parity.verdict import Divergence, Ruling


def failed_at(
    finding: Finding, reason: str, details: Iterable[str], culprit: Culprit | None = None
) -> Ruling:
    """Return a failed outcome for one differing tensor, which becomes the first divergence.

    Args:
        finding: the tensor.
        reason: one line.
        details: lines below it.
        culprit: the operation that made it, where it is known.
    """
    return Ruling(
        outcome="fail",
        reason=reason,
        details=tuple(details),
        divergence=divergence_of(diagnose_tensor(finding)),
        culprit=culprit,
        figures={"histogram": histogram_of(finding)},
    )


def what_differs(finding: Finding) -> str:
    """Return words on which tensor differs, and at which step and phase."""
    pair = finding.pair
    return f"{pair.kind} of {pair.name} differs {wording.when(pair.moment)}"


def divergence_of(diagnosis: Diagnosis) -> Divergence:
    """Return where two tensors differ first, both values there, and what the error looks like."""
    finding = diagnosis.finding
    moment = finding.pair.moment
    pair = finding.pair
    statistics = finding.statistics
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


POWERS = np.uint64(1) << np.arange(64, dtype=np.uint64)
"""The smallest distance of each bit length, from 1."""


def histogram_of(finding: Finding) -> dict[str, Any] | None:
    """Count a differing tensor's elements by distance in ulp; None where values do not differ."""
    both = finding.pair.tensors
    if finding.statistics is None or both is None:
        return None
    return histogram(*both)


def histogram(candidate: Tensor, reference: Tensor) -> dict[str, Any] | None:
    """Count a tensor's elements by the bit length of their distance in representable values.

    Args:
        candidate: any tensor.
        reference: a tensor of the same shape.

    Returns:
        `by_bits`: at position n the number of elements whose distance has n bits, so that 0 is no
        distance; `nan`: those with a NaN on one side, or of other bytes; `infinite`: others with an
        infinity on one side, or of the other sign. None for dtypes without such a distance.
    """
    dtype = common_dtype(candidate.dtype, reference.dtype, check_dtype=False)
    if dtype not in FLOATS:
        return None
    counts = np.zeros(len(POWERS) + 1, np.int64)
    nan = infinite = 0
    for _, *sides in spans(candidate, reference, dtype):
        c, r = map(bits, sides)
        a, b = values_of_bits(c, dtype), values_of_bits(r, dtype)
        no_number = (np.isnan(a) | np.isnan(b)) & differ(c, r)
        unbounded = ~no_number & (np.isinf(a) | np.isinf(b)) & (a != b)
        rest = ~(no_number | unbounded)
        lengths = np.searchsorted(POWERS, ulps(c[rest], r[rest], dtype), side="right")
        counts += np.bincount(lengths, minlength=len(counts))
        nan += int(np.count_nonzero(no_number))
        infinite += int(np.count_nonzero(unbounded))
    filled = np.flatnonzero(counts)
    by_bits = counts[: filled[-1] + 1].tolist() if len(filled) else []
    return {"by_bits": by_bits, "nan": nan, "infinite": infinite}
