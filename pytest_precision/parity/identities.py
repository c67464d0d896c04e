"""Identities: what must hold within one trace, whatever the other side shows."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from pytest_precision.parity.align import assemble
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.recording import Recording
from pytest_precision.trace.store import Entry, Trace

SUMMED = 1e-5
"""Relative error of a norm whose squares are summed in fp32, in any order."""

ROUNDINGS = 16
"""Unit roundoffs of the gradients' dtype that a norm of norms may be off by."""


def wrong_norm(side: Recording) -> str | None:
    """Return, in words, where `grad_norm` is not the norm of the reduced gradients, or None.

    It is looked for where the oracle has judged updates and the engine clips by the L2 norm: an
    engine that does all in one call shows its gradients after they are clipped.
    """
    trace, log = side.trace, side.oracle
    if not log.judged or not log.by_l2 or trace.header.digests or side.cell.precision == "fp16":
        return None
    for reduced, clipped in _clippings(trace):
        shown = [e for e in trace.entries(clipped) if e.kind == "grad_norm"]
        gradients = _gradients(trace, reduced)
        if not shown or not gradients:
            continue
        norm = float(trace.tensor(shown[0]).double())
        exact = float(torch.stack([g.double().norm() for g in gradients]).norm())
        unit = max(torch.finfo(g.dtype).eps for g in gradients) / 2
        # Written so that two infinities, or NaN, pass: the step is then skipped.
        if abs(norm - exact) > (SUMMED + ROUNDINGS * unit) * exact:
            return (
                f"grad_norm at step {clipped.step} is {norm!r} in the {side.name}, but the norm of "
                f"its reduced gradients is {exact!r}, {norm / exact:.6g} times that"
            )
    return None


def _clippings(trace: Trace) -> Iterator[tuple[Moment, Moment]]:
    """Yield the moments after reduction and after clipping of each train step."""
    train = [moment for moment in trace.moments if moment.operation == "train"]
    reduced = {moment.op: moment for moment in train if moment.phase == "reduce_grads"}
    for moment in train:
        if moment.phase == "clip_grads" and moment.op in reduced:
            yield reduced[moment.op], moment


def _gradients(trace: Trace, moment: Moment) -> list[Tensor]:
    """Return the reduced gradients of all that is updated; nothing where one is not whole."""
    updated = trace.dtypes().get("master", {})
    pieces: dict[str, list[Entry]] = {}
    for entry in trace.entries(moment):
        if entry.kind == "reduced_grad" and not entry.local and entry.name in updated:
            pieces.setdefault(entry.name, []).append(entry)
    whole = [assemble(trace, own).tensor for own in pieces.values()]
    return [] if any(one is None for one in whole) else [one for one in whole if one is not None]
