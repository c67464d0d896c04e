"""Find the difference of a step that explains the first one, though a step shows it later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pytest_precision.parity.compare.optional import shows_reads

if TYPE_CHECKING:
    from pytest_precision.parity.compare.differing import Finding
    from pytest_precision.parity.compare.divergences import Judgement

SHOWN_LATER = ("flag", "lr")
"""Kinds that follow from no number of a step, and that a step shows after its losses: the mode in
which its modules were, and which weights have a rate in it. What the rate is changes no loss."""

GENERATORS = ("rng", "host_rng")
"""Kinds that numbers of a step follow from, and that differ where two steps draw other numbers."""


def first_cause(judgement: Judgement) -> Finding | None:
    """Return the first difference, or a later one that explains it, such as a module in eval mode.

    A script's generator is seen where the next step begins, which may have drawn its data already,
    unless that step is an update without a forward.
    """
    first = judgement.first
    if first is None or shows_reads(first.pair.kind):
        return first
    op = first.pair.moment.op
    if first.pair.kind in GENERATORS:
        op = min((later for _, later in judgement.spread if later > op), default=op)
        losses = judgement.spread.get(("loss", op))
        if losses is not None and 0 in losses.numbers:
            return losses.findings[0]
    elif first.pair.moment.phase != "forward_backward":
        return first
    later = (judgement.spread.get((kind, op)) for kind in SHOWN_LATER)
    findings = (finding for tally in later if tally for finding in tally.findings[:1])
    explaining = [
        finding for finding in findings if finding.pair.kind == "flag" or finding.is_one_sided
    ]
    if first.pair.kind == "loss":
        explaining += _of_loss_scale(judgement, op)
    return explaining[0] if explaining else first


def _of_loss_scale(judgement: Judgement, op: int) -> Sequence[Finding]:
    """Return findings of the loss scale that explain a loss: unscaled gradients are the same."""
    scale, gradients = (judgement.spread.get((kind, op)) for kind in ("loss_scale", "final_grad"))
    if scale is None or gradients is None or gradients.findings:
        return ()
    return scale.findings
