"""Recognize errors by the reference's other tensors and steps, such as a stale or skipped update.

An update that was left out, made twice or the wrong way, a gradient that was not zeroed, the value
of another step or of another tensor: none of it can be seen in two tensors alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.engine.kinds import is_state
from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.compare.bit_patterns import FLOATS
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.compare.logical_tensor import assemble
from pytest_precision.parity.compare.pairs import Pair
from pytest_precision.parity.compare.ratio import (
    COARSEST,
    LEAST_ELEMENTS,
    ROUNDINGS,
    Fit,
    is_stretch,
    place,
    unit_of,
    words_of,
    words_unlike_1,
)
from pytest_precision.parity.compare.signature import Signature, is_measured
from pytest_precision.parity.compare.sums import is_rounding
from pytest_precision.parity.compare.tensors import same_bytes
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Entry, Trace

GRADIENTS = ("grad", "reduced_grad", "final_grad")
"""Kinds that a step must make anew."""

RATES = ("lr", "hyper")
"""Kinds of which each tensor is a number of a parameter group."""

LARGEST = 16
"""Largest multiple of an update that is said: beyond it, something else was added."""


class Compared(NamedTuple):
    """A differing tensor of candidate and reference to compare, with the unit roundoff of the runs.

    Attributes:
        finding: the tensor.
        ours: the candidate's.
        theirs: the reference's.
        unit: unit roundoff of the coarsest products of either run, or of the tensors.
    """

    finding: Finding
    ours: Tensor
    theirs: Tensor
    unit: float

    @classmethod
    def of(cls, finding: Finding) -> Compared | None:
        """Make a `Compared` of a finding's two tensors; `unit` is the runs' coarsest unit roundoff.

        None unless values alone differ, and both runs show them.
        """
        both = finding.pair.tensors
        if finding.problem != "values" or both is None:
            return None
        products = (name for side in finding.pair.both for name in side.trace.header.products)
        dtypes = {getattr(torch, name) for name in products} | {side.dtype for side in both}
        units = (unit_of(dtype) for dtype in dtypes if dtype in FLOATS)
        return cls(finding, *both, max(units, default=0.0))

    @property
    def pair(self) -> Pair:
        """Return the differing tensor as a pair: the candidate's and the reference's."""
        return self.finding.pair

    @property
    def part(self) -> tuple[int | None, int | None]:
        """Return the tensor's rank and microbatch; each is None if all of them share the tensor."""
        return self.pair.rank, TensorKey.of(self.pair.kind, self.pair.name).microbatch

    @property
    def values(self) -> tuple[Tensor, Tensor]:
        """Return the candidate's and the reference's tensor in fp64, each of shape [n]."""
        return self.ours.double().reshape(-1), self.theirs.double().reshape(-1)


def of_history(pair: Pair, candidate: Tensor, reference: Tensor) -> Signature | None:
    """Return the error pattern if a wrong tensor equals one of another step or name; else None.

    Args:
        pair: both sides; one tensor of the reference is `reference`.
        candidate: differs from it, in equal shape and dtype.
        reference: what it should be.
    """
    stale = _stale(pair, candidate)
    start = None
    if is_state(pair.kind) and pair.moment.operation == "train":
        start = _before(pair)
    if start is not None and start.shape == candidate.shape and start.dtype == candidate.dtype:
        updated = of_update(candidate, reference, start)
        if updated is not None:
            return updated
    return _of_group(pair, candidate) or stale


def of_update(candidate: Tensor, reference: Tensor, before: Tensor) -> Signature | None:
    """Recognize a tensor that a step updated not at all, only in part, or by a wrong factor.

    Args:
        candidate: after the step.
        reference: after it.
        before: what both started from.
    """
    if not is_measured(candidate) and candidate.dtype.itemsize == 1:
        return None
    if same_bytes(candidate, before):
        return Signature("not updated", "not updated")
    ours, theirs, old = (t.double().reshape(-1) for t in (candidate, reference, before))
    if not all(bool(t.isfinite().all()) for t in (ours, theirs, old)):
        return None
    differ = (ours != theirs).nonzero().view(-1)
    if torch.equal(ours[differ], old[differ]) and is_stretch(differ, len(ours)):
        return Signature("not updated", f"not updated in {place(differ, len(ours))}")
    fit = Fit.of(ours - old, theirs - old)
    if fit is None or abs(fit.factor) > LARGEST:
        return None
    unit = unit_of(candidate.dtype) if candidate.is_floating_point() else 0.0
    # Each side is rounded to its storage, which is a large part of a small update.
    stored = 2 * unit * float(old.norm()) / max(float((ours - old).norm()), 1e-300)
    return _multiple(fit, max(stored, unit), is_number=len(ours) == 1)


def _multiple(fit: Fit, rounding: float, *, is_number: bool) -> Signature | None:
    """Return the multiple of the right update by which a tensor moved; None if none fits.

    For a single number only a whole multiple counts.
    """
    effect = abs(fit.factor - 1)
    if fit.residual > min(ROUNDINGS * rounding, COARSEST) or effect < 8 * max(
        fit.residual, rounding
    ):
        return None
    whole = round(fit.factor)
    near = abs(fit.factor - whole) <= max(8 * rounding, COARSEST if not is_number else 1e-6)
    if is_number and not near:
        return None
    if near and whole == -1:
        return Signature("update", "moved the other way")
    said = str(whole) if near and whole not in (0, 1) else words_unlike_1(fit.factor, exact=False)
    return Signature("update", f"moved by {said} times the reference's update")


def not_zeroed(compared: Sequence[Compared], unit: float) -> Signature | None:
    """Recognize gradients that contain the previous step's gradients, or a multiple of them.

    A clip in place leaves a gradient scaled.

    Args:
        compared: gradients of one moment that differ.
        unit: unit roundoff of what computed them.
    """
    vectors = []
    for tensor in compared:
        earlier = _step_before(tensor.pair)
        if (
            tensor.pair.kind not in GRADIENTS
            or earlier is None
            or earlier[1].shape != tensor.ours.shape
        ):
            return None
        step, old = earlier
        vectors.append([*tensor.values, old.double().reshape(-1)])
    ours, theirs, old = (torch.cat(column) for column in zip(*vectors, strict=True))
    if len(ours) < LEAST_ELEMENTS or not all(bool(t.isfinite().all()) for t in (ours, theirs, old)):
        return None
    fit = Fit.of(ours - theirs, old)
    if fit is None:
        return None
    noise = min(ROUNDINGS * unit, COARSEST) * float(theirs.norm()) / float((ours - theirs).norm())
    if fit.residual > max(min(noise, 4 * COARSEST), ROUNDINGS * unit_of(torch.float32)):
        return None
    much = "" if abs(fit.factor - 1) <= COARSEST else f"{words_of(fit.factor, exact=False)} times "
    return Signature("not zeroed", f"the difference is {much}the gradient of step {step}")


def loss_scale(pair: Pair) -> float | None:
    """Return the reference's loss scale at the time of a difference; None where there is none."""
    trace = _run(pair)
    scale = None
    for moment in trace.moments:
        if (moment.step, moment.op) > (pair.moment.step, pair.moment.op):
            break
        for entry in trace.entries(moment, {"loss_scale"}):
            if entry.name == "scale" and not entry.digest:
                scale = float(trace.tensor(entry))
    return scale


def _run(pair: Pair) -> Trace:
    """Return the recorded trace of the reference."""
    return pair.both[1].trace


def _earlier(pair: Pair) -> Iterator[Moment]:
    """Yield the moments of the reference's run before a difference, the latest first."""
    moments = _run(pair).moments
    # The reference may run other operations in between, so that its index says nothing.
    alike = [number for number, moment in enumerate(moments) if moment[1:] == pair.moment[1:]]
    yield from reversed(moments[: alike[0]] if alike else ())


def _before(pair: Pair) -> Tensor | None:
    """Return the reference's last recorded value of a tensor before the difference, if any."""
    for moment in _earlier(pair):
        if (tensor := _values(pair, moment, pair.name)) is not None:
            return tensor
    # An optimizer that makes its counter in the first step has counted none before it.
    if pair.kind == "step" and pair.reference is not None and pair.reference.tensor is not None:
        return torch.zeros_like(pair.reference.tensor)
    return None


def _step_before(pair: Pair) -> tuple[int, Tensor] | None:
    """Return the number of the previous train step, and the reference's tensor in it."""
    for moment in _earlier(pair):
        same = (moment.operation, moment.phase) == ("train", pair.moment.phase)
        if same and moment.step < pair.moment.step:
            tensor = _values(pair, moment, pair.name)
            return None if tensor is None else (moment.step, tensor)
    return None


def _values(pair: Pair, moment: Moment, name: str) -> Tensor | None:
    """Return the reference's tensor of this name at a moment; None if only digests were kept."""
    return _assembled(pair, _pieces(pair, moment).get(name, []))


def _assembled(pair: Pair, pieces: list[Entry]) -> Tensor | None:
    """Return the reference's tensor made of pieces; None if only digests were kept."""
    if not pieces or any(piece.digest for piece in pieces):
        return None
    return assemble(_run(pair), pieces).tensor


def _pieces(pair: Pair, moment: Moment) -> Mapping[str, list[Entry]]:
    """Return what the reference's ranks recorded of one kind of tensor at a moment, by name."""
    by_name = _run(pair).held(moment, {pair.kind})[pair.kind]
    if pair.rank is None:
        return by_name
    return {name: [e for e in pieces if e.rank == pair.rank] for name, pieces in by_name.items()}


def _of_group(pair: Pair, candidate: Tensor) -> Signature | None:
    """Recognize an option, such as the learning rate, that has another parameter group's value."""
    if pair.kind not in RATES:
        return None
    ours = pair.both[0].trace
    pair_key = TensorKey.of(pair.kind, pair.name)
    entries = {
        entry.name: entry for entry in ours.entries(pair.moment, {pair.kind}) if not entry.digest
    }
    for name in _same_bytes(pair, pair.moment, candidate):
        key = TensorKey.of(pair.kind, name)
        is_other = name != pair.name and key.part == pair_key.part and name in entries
        if is_other and same_bytes(ours.tensor(entries[name]), candidate):
            return Signature("other tensor", f"that of {key.owner}")
    return None


def _stale(pair: Pair, candidate: Tensor) -> Signature | None:
    """Recognize a tensor whose bytes the reference has in another step or under another name."""
    if pair.kind == "loss" and is_rounding(candidate):
        return None
    constant = bool((candidate == candidate.reshape(-1)[0]).all())
    for moment in _run(pair).moments:
        if (moment.phase, moment.operation) == (pair.moment.phase, pair.moment.operation):
            same_step = moment.step == pair.moment.step
            if same_step and constant:
                continue  # other tensors may be constant too, as those that are zero
            for name in _same_bytes(pair, moment, candidate):
                if same_step and name != pair.name:
                    return Signature("other tensor", f"the reference's {name}")
                if not same_step and name == pair.name:
                    return Signature("stale", f"the value of step {moment.step}")
    return None


def _same_bytes(pair: Pair, moment: Moment, candidate: Tensor) -> Iterator[str]:
    """Yield the names of the reference's tensors whose bytes equal the candidate's tensor."""
    for name, pieces in _pieces(pair, moment).items():
        if pieces and pieces[0].shape == candidate.shape:
            other = _assembled(pair, pieces)
            if other is not None and same_bytes(candidate, other):
                yield name
