"""Diagnose the first divergence: from all tensors of its kind at once, the most telling one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pytest_precision.engine.kinds import KINDS
from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.compare.divergences import Finding, Judgement
from pytest_precision.parity.compare.pairs import Pair, assemble
from pytest_precision.parity.compare.signature import constant_ratio, is_telling, signature, times
from pytest_precision.parity.compare.tensors import same_bytes
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.store import Entry

BACKWARD = ("grad", "reduced_grad", "final_grad")
"""Kinds that arise from the last tensor to the first."""

ALONE = frozenset({"decision"} | {name for name, kind in KINDS.items() if kind.lasts == "setting"})
"""Kinds of single numbers and choices, which say more than what they have in common."""

MOST = 1 << 26
"""Elements that are looked at; a kind may have more, and its first tensors stand for it then."""


class Diagnosis(NamedTuple):
    """What a divergence looks like.

    Attributes:
        finding: the one that tells most about it.
        signature: the kind of error in words, or the name of the problem.
        telling: whether the words say more than the figures do.
        likewise: names of the other tensors of the kind that look the same.
        looked_at: number of tensors of the kind that differ at that moment.
    """

    finding: Finding
    signature: str
    telling: bool = False
    likewise: tuple[str, ...] = ()
    looked_at: int = 1


def diagnose(judgement: Judgement) -> Diagnosis:
    """Return what the first divergence of a judgement that has one looks like.

    Every tensor that differs with the first one, of its kind and at its moment, is looked at. A
    tensor with a telling signature stands for them; of gradients without one, the last in forward
    order, where backward begins.
    """
    first = judgement.first
    assert first is not None
    alike = [*_with(first, judgement)]
    if len(alike) < 2 or _tensors(first) is None or first.pair.kind in ALONE:
        return single(first)
    factor = _pooled(alike)
    if factor is None:
        found = [single(finding) for finding in alike]
    else:
        found = [Diagnosis(finding, times(factor), telling=True) for finding in alike]
    found = [one._replace(looked_at=len(found)) for one in found]
    telling = [one for one in found if one.telling]
    if not telling:
        return _last(found) if first.pair.kind in BACKWARD else found[0]
    chosen = telling[0]
    same = [one.finding.pair.name for one in telling[1:] if one.signature == chosen.signature]
    if not same:
        return chosen
    which = "each of" if len(same) == len(found) - 1 else f"{len(same) + 1} of"
    words = f"{chosen.signature} in {which} {len(found)} tensors that differ"
    return chosen._replace(signature=words, likewise=tuple(same))


def _last(found: list[Diagnosis]) -> Diagnosis:
    """Return the last tensor of the microbatch in which the first one differs, if it is in one."""
    own = [one for one in found if _microbatch(one) == _microbatch(found[0])]
    return own[-1]


def _microbatch(diagnosis: Diagnosis) -> int | None:
    pair = diagnosis.finding.pair
    return TensorKey.of(pair.kind, pair.name).microbatch


def _with(first: Finding, judgement: Judgement) -> Iterator[Finding]:
    """Yield the findings in values beside the first one, which may be none of them."""
    seen = 0
    for finding in judgement.spread[first.pair.kind, first.pair.moment.op].findings:
        tensors = _tensors(finding)
        if finding.pair.moment == first.pair.moment and tensors is not None:
            seen += tensors[0].numel()
            if seen <= MOST:
                yield finding


def single(finding: Finding) -> Diagnosis:
    """Return what one finding looks like by itself."""
    tensors = _tensors(finding)
    if tensors is None:
        return Diagnosis(finding, finding.problem)
    words = signature(*tensors, partial(_twin, finding.pair))
    return Diagnosis(finding, words, telling=is_telling(words))


def _tensors(finding: Finding) -> tuple[Tensor, Tensor] | None:
    """Return the values of both sides, where nothing but these is wrong."""
    pair = finding.pair
    if finding.problem != "values" or pair.candidate is None or pair.reference is None:
        return None
    ours, theirs = pair.candidate.tensor, pair.reference.tensor
    return None if ours is None or theirs is None else (ours, theirs)


def _pooled(findings: list[Finding]) -> float | None:
    """Return the factor that all tensors share: one element alone has a ratio, but no constant."""
    pairs = [tensors for finding in findings if (tensors := _tensors(finding)) is not None]
    if not all(ours.is_floating_point() and ours.isfinite().all() for ours, _ in pairs):
        return None
    eps = max(torch.finfo(ours.dtype).eps for ours, _ in pairs)
    flat = [
        torch.cat([one.double().reshape(-1) for one in side]) for side in zip(*pairs, strict=True)
    ]
    return constant_ratio(flat[0], flat[1], eps)


def _twin(pair: Pair, candidate: Tensor) -> str:
    """Say which other tensor of the reference has the candidate's bytes; nothing where none has."""
    assert pair.reference is not None
    for moment in pair.reference.trace.moments:
        if (moment.phase, moment.operation) == (pair.moment.phase, pair.moment.operation):
            here = moment.step == pair.moment.step
            if here and bool((candidate == candidate.reshape(-1)[0]).all()):
                continue  # other tensors may be constant too, as those that are zero
            for name in _same_bytes(pair, moment, candidate):
                if here and name != pair.name:
                    return f"the reference's {name}"
                if not here and name == pair.name:
                    return f"the value of step {moment.step}"
    return ""


def _same_bytes(pair: Pair, moment: Moment, candidate: Tensor) -> Iterator[str]:
    """Yield the names of the reference's tensors of the pair's kind with the candidate's bytes."""
    assert pair.reference is not None
    trace = pair.reference.trace
    found: dict[str, list[Entry]] = {}
    for entry in trace.entries(moment):
        if entry.kind == pair.kind and pair.rank in (None, entry.rank):
            found.setdefault(entry.name, []).append(entry)
    for name, pieces in found.items():
        if pieces[0].shape == candidate.shape and not pieces[0].digest:
            other = assemble(trace, pieces).tensor
            if other is not None and same_bytes(candidate, other):
                yield name
