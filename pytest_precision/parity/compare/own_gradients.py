"""Tell gradients that each rank keeps of its own from those that nobody has reduced.

A sharded optimizer may reduce copies: the ranks' gradients stay as they are, and each rank's part
of the sum is what its optimizer reads.
"""

from __future__ import annotations

import torch

from pytest_precision.parity.compare.logical_tensor import LogicalTensor, assemble
from pytest_precision.parity.compare.pairs import Pair
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Entry

THEIR_SUM = "each rank keeps its own, and the parts of final_grad are their sum up to a factor"

NOT_KNOWN = (
    "each rank keeps its own, and whether the parts of final_grad are their sum is not known, "
    "since digests alone were recorded"
)

PARALLEL = 0.999
"""Least cosine between a gradient and the sum of the ranks' own: below it, roundings to bf16 do not
explain it, and gradients of one rank on other data have less."""


def reduced_elsewhere(pair: Pair, moments: tuple[Moment, Moment]) -> str:
    """Return why gradients that differ between ranks are not compared; empty to compare them.

    Args:
        pair: any pair.
        moments: of the candidate and of the reference.
    """
    if pair.kind != "reduced_grad":
        return ""
    sides = zip((pair.candidate, pair.reference), moments, strict=True)
    faulty = [
        (side, moment)
        for side, moment in sides
        if side is not None and side.fault is not None and side.fault.problem == "replicas"
    ]
    reasons = {_reason(side, pair.name, moment) for side, moment in faulty}
    return "" if "" in reasons else NOT_KNOWN if NOT_KNOWN in reasons else "".join(reasons)


def _reason(side: LogicalTensor, name: str, moment: Moment) -> str:
    """Return whether an optimizer reads parts of the sum of what the ranks have; empty if not."""
    parts = _final_parts(side, name, moment)
    holders = {part.rank for part in parts if part.piece == part.shape}
    if not parts or holders >= {entry.rank for entry in side.pieces}:
        return ""
    gradient = assemble(side.trace, parts)
    if gradient.fault is not None:
        return ""
    if any(entry.digest for entry in (*parts, *side.pieces)):
        return NOT_KNOWN
    final = gradient.tensor
    if final is None or final.shape != side.pieces[0].shape:
        return ""
    final = final.double()
    total = torch.stack([side.trace.tensor(entry).double() for entry in side.pieces]).sum(0)
    return THEIR_SUM if (total * final).sum() >= PARALLEL * total.norm() * final.norm() else ""


def _final_parts(side: LogicalTensor, name: str, moment: Moment) -> list[Entry]:
    """Return the parts of a gradient that the ranks' optimizers have read in a train step."""
    return [
        entry
        for other in side.trace.moments
        if (other.op, other.step) == (moment.op, moment.step)
        for entry in side.trace.entries(other, {"final_grad"})
        if entry.name == name
    ]
