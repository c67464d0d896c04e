"""Check relations that must hold within one run, such as a reduced gradient being a sum.

Each check returns None where its identity holds, or cannot be decided, else what contradicts it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pytest_precision.parity.compare.bit_patterns import has_all, step_at
from pytest_precision.parity.compare.logical_tensor import assemble, region
from pytest_precision.parity.compare.ratio import constant_ratio
from pytest_precision.parity.compare.tensors import same_bytes
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Entry, Trace

SUMMED = 1e-5
"""Relative error of a norm whose squares are summed in fp32, in any order."""

ROUNDINGS_OF_SUM = 16
"""Unit roundoffs of the gradients' dtype that a norm of norms may be off by."""

ALIKE = 1e-5
"""Relative difference of two factors that are one, each rounded in its tensors."""

SLACK = 1 + 2.0**-6
"""Share of half a step by which a compensation, which is rounded itself, may be longer."""

GRIDS = (torch.bfloat16, torch.float16)
"""Dtypes in which gradients may have been summed, where all sums lie on their grid."""


@dataclass(frozen=True)
class Claim:
    """A claim, to be checked, on the value that a tensor of a run must be equal to.

    Attributes:
        step: train step.
        kind: of the tensor.
        name: the logical tensor's name.
        identity: what it should be, in words.
    """

    step: int
    kind: str
    name: str
    identity: str

    def broken(self, got: Tensor, exact: Tensor, bound: Tensor | float) -> Judged:
        """Return a contradiction if an element differs from what it should be by more than `bound`.

        Elements that are not finite on either side are left out: an overflow has its own words.

        Args:
            got: what was observed.
            exact: what it should be, of its shape, fp64.
            bound: largest legitimate error.
        """
        candidate_tensor = got.double().reshape(-1)
        exact = exact.reshape(-1)
        excess = (candidate_tensor - exact).abs() - (
            bound.reshape(-1) if isinstance(bound, Tensor) else bound
        )
        excess = excess.where(excess.isfinite(), -torch.inf)
        if not excess.numel() or float(excess.max()) <= 0:
            return None
        place = int(excess.argmax())
        index = tuple(int(i) for i in torch.unravel_index(torch.tensor(place), got.shape))
        return Contradiction(
            self.step,
            self.kind,
            self.name,
            self.identity,
            index,
            float(exact[place]),
            float(candidate_tensor[place]),
            _factor(
                candidate_tensor,
                exact,
                torch.finfo(got.dtype).eps if got.is_floating_point() else 0.0,
            ),
        )


@dataclass(frozen=True)
class Contradiction(Claim):
    """A claim that a run breaks: a recorded tensor is not equal to the value required of it.

    Attributes:
        index: of the element that is furthest off.
        expected: what it should be.
        got: what was observed.
        factor: of all elements, if they are off by one.
        everywhere: whether all tensors of its kind are off by that factor.
        cause: what has happened to it, in words, where that is known.
    """

    index: tuple[int, ...]
    expected: float
    got: float
    factor: float | None
    everywhere: bool = False
    cause: str | None = None


Judged = Contradiction | None
"""What a check returns: what contradicts an identity; None where it holds or is not decided."""


def contradiction_words(breach: Contradiction, who: str) -> str:
    """Return a line on which tensor is not what it should be, in which run, and by how much."""
    everywhere = ", as in every other tensor" if breach.everywhere else ""
    off = "" if breach.factor is None else f", {breach.factor:.6g} times that{everywhere}"
    off += f"; {breach.cause}" * bool(breach.cause)
    return (
        f"{breach.kind} of {breach.name} at step {breach.step} is not {breach.identity} in {who}: "
        f"{breach.got!r} at {breach.index}, {breach.expected!r} by that{off}"
    )


def advice_on(breach: Contradiction) -> str:
    """Return the advice to write in the test if a contradiction within a run is intended."""
    advice = (
        "If that is meant, oracle=unchecked(reason=...) turns this judgement off, "
        f"oracle={{{breach.kind!r}: unchecked(reason=...)}} that of this kind."
    )
    if breach.kind == "reduced_grad" and breach.everywhere:
        advice += (
            " Where gradients are divided by the tokens of the step after their reduction, "
            "`grad_factor = step_tokens` in the engine says so, and they are judged."
        )
    return advice


def _factor(candidate_tensor: Tensor, exact_tensor: Tensor, eps: float) -> float | None:
    """Return the constant factor between a tensor and the exact one; None if there is none."""
    if not bool(candidate_tensor.isfinite().all() and exact_tensor.isfinite().all()):
        return None
    if candidate_tensor.numel() == 1 and bool(exact_tensor):
        return float(candidate_tensor / exact_tensor)
    return constant_ratio(candidate_tensor, exact_tensor, eps)


def everywhere(breaches: Sequence[Judged]) -> Iterator[Contradiction]:
    """Yield the contradictions at one moment, marked as `everywhere` if one factor explains all.

    Args:
        breaches: of all tensors that were looked at, None where one is as it should be.
    """
    contradictions = [breach for breach in breaches if breach is not None]
    factors = [breach.factor for breach in contradictions if breach.factor is not None]
    shared = len(factors) == len(breaches) > 1 and max(factors) - min(factors) <= ALIKE * abs(
        factors[0]
    )
    for breach in contradictions:
        yield replace(breach, everywhere=shared)


def cast(claim: Claim, got: Tensor, exact: Tensor) -> Judged:
    """Return a contradiction if `got` is not `exact`, cast to its dtype by rounding to nearest.

    Ties may go either way.
    """
    if got.dtype == exact.dtype and same_bytes(got, exact):
        return None
    if torch.equal(exact.to(got.dtype), got):
        return None
    value = exact.double()
    if not got.is_floating_point() or got.dtype.itemsize == 1:
        return None
    if torch.finfo(got.dtype).eps <= torch.finfo(exact.dtype).eps:
        return claim.broken(got, value, 0.0)
    return claim.broken(got, value, SLACK / 2 * step_at(value, got.dtype))


def summed(
    claim: Claim, trace: Trace, got: Tensor, reduced: Iterable[Entry], parts: list[Entry]
) -> Judged:
    """Return a contradiction if a reduced gradient is not the sum of the ranks' gradients.

    A sum of n terms in any order, scaled once before it and once after it, is off by n + 3 unit
    roundoffs of the sum of their magnitudes, in the coarsest dtype that it was stored in.

    Args:
        claim: of the sum.
        trace: holds the gradients.
        got: the whole reduced gradient.
        reduced: its pieces.
        parts: what each rank has accumulated.
    """
    if len(parts) == 1 and all(trace.same_bytes(parts[0], trace, piece) for piece in reduced):
        return None
    total, size = torch.zeros(2, *got.shape, dtype=torch.float64)
    for part in parts:
        values = trace.tensor(part).double()
        region(total, part).add_(values)
        region(size, part).add_(values.abs())
    first = torch.finfo(getattr(torch, parts[0].dtype))
    own_limits = torch.finfo(got.dtype)
    for limits in (None, *(torch.finfo(grid) for grid in GRIDS if has_all(grid, got))):
        eps = max(first.eps, own_limits.eps) if limits is None else limits.eps
        least = max(first.tiny, own_limits.tiny) if limits is None else limits.tiny
        bound = size * ((len(parts) + 3) * eps / 2) + least
        breach = claim.broken(got, total, bound)
        if breach is None:
            return None
    return breach


def normed(claim: Claim, norm: Tensor, gradients: Iterable[Tensor], scale: float) -> Judged:
    """Return a contradiction if a recorded gradient norm is not the L2 norm of the gradients.

    Infinities and NaN are left out.

    Args:
        claim: of the norm.
        norm: what was observed.
        gradients: all that are updated.
        scale: what they are divided by first; in fp16, half a subnormal of each may be lost.
    """
    tensors = [*gradients]
    exact = torch.stack([gradient.double().norm() for gradient in tensors]).norm() / scale
    unit = max(torch.finfo(gradient.dtype).eps for gradient in tensors) / 2
    halves = sum(tensor.numel() for tensor in tensors if tensor.dtype is torch.float16)
    lost = halves**0.5 * torch.finfo(torch.float16).smallest_normal * unit
    return claim.broken(
        norm.reshape(()), exact, (SUMMED + ROUNDINGS_OF_SUM * unit) * float(exact) + lost
    )


EntriesByName = Mapping[str, Mapping[str, list[Entry]]]
"""Kind to name to the pieces of all ranks, at one moment."""


class RunView:
    """Access to the tensors of one run, which counts the checks that were made.

    Args:
        trace: of the run.
        checked: counts, per identity, the tensors that were looked at.
    """

    def __init__(self, trace: Trace, checked: Counter[str]) -> None:
        self._trace = trace
        self._checked = checked

    def claim(self, moment: Moment, kind: str, name: str, identity: str) -> Claim:
        """Return a claim of what a tensor must be equal to, and count it as one check."""
        self._checked[f"{kind} is {identity}"] += 1
        return Claim(moment.step, kind, name, identity)

    def equal(
        self,
        moment: Moment,
        tensor: tuple[str, str],
        identity: str,
        got: Tensor | None,
        exact: Tensor | None,
    ) -> Judged:
        """Return a contradiction if two tensors have unequal bytes; None also if one is missing.

        Args:
            moment: at which it was observed.
            tensor: its kind and name.
            identity: what it should be, in words.
            got: what was observed.
            exact: what it should be.
        """
        if got is None or exact is None:
            return None
        claim = self.claim(moment, *tensor, identity)
        if got.shape != exact.shape or same_bytes(got, exact):
            return None
        return claim.broken(got, exact.double(), 0.0)

    def whole(self, entries: Sequence[Entry] | None) -> Tensor | None:
        """Return a tensor joined from its ranks' pieces; None if they are missing or do not fit."""
        return assemble(self._trace, [*entries]).tensor if entries else None

    def numbers(self, entries: Mapping[str, Sequence[Entry]]) -> dict[str, float]:
        """Return the values of recorded one-element tensors as floats, by name."""
        wholes = {name: self.whole(pieces) for name, pieces in entries.items()}
        return {name: float(whole) for name, whole in wholes.items() if whole is not None}

    def same(self, got: Sequence[Entry], other: Sequence[Entry]) -> bool:
        """Return whether two whole tensors are known to have the same bytes."""
        first_entry = other[0]
        if any(piece.digest and piece.piece != piece.shape for piece in (*got, *other)):
            candidate, reference = (assemble(self._trace, [*side]) for side in (got, other))
            return candidate.same_bytes(reference)
        return first_entry.piece == first_entry.shape and all(
            (piece.dtype, piece.piece) == (first_entry.dtype, first_entry.piece)
            and self._trace.same_bytes(piece, self._trace, first_entry)
            for piece in (*got, *other[1:])
        )
