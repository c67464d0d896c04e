"""Recognize the error that the first difference shows, from all tensors that differ with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import Tensor

from pytest_precision.engine.kinds import KINDS, is_state
from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.compare.divergences import Finding, Judgement
from pytest_precision.parity.compare.signature import ERRORS, NO_SIGNATURE, Signature, extreme, form
from pytest_precision.parity.explain import pooled
from pytest_precision.parity.explain.history import GRADIENTS, of_history
from pytest_precision.parity.explain.pooled import Compared
from pytest_precision.parity.explain.unlike import other_number, other_weights
from pytest_precision.trace.gradient_log import GradientBreach

ALONE = frozenset({"decision"} | {name for name, kind in KINDS.items() if kind.lasts == "setting"})
"""Kinds of single numbers and choices, which say more than what they have in common."""

NUMBERS = ("loss", "grad_norm", "loss_scale", "step", "buffer")
"""Kinds of which a single number tells a factor: a setting is read as it is, and one element of a
weight says less than the other weights."""

UPDATES = ("not updated", "update")
"""Kinds of errors of what a step updates, seen from what it was before."""

MOST = 1 << 26
"""Elements that are looked at; a kind may have more, and its first tensors stand for it then."""


class Diagnosis(NamedTuple):
    """The error pattern, such as a constant factor, that all tensors at the first divergence share.

    Attributes:
        finding: the one that tells most about it.
        signature: the kind of error in words, or the name of the problem.
        error: the kind of error, one of `ERRORS` or the name of the problem; empty where nothing
            stands out.
        likewise: names of the other tensors of the kind that look the same.
        looked_at: number of tensors of the kind that differ at that moment.
    """

    finding: Finding
    signature: str
    error: str
    likewise: tuple[str, ...] = ()
    looked_at: int = 1

    @property
    def telling(self) -> bool:
        """Whether a pattern was recognized, and not only that there are NaN or infinities."""
        return self.error in ERRORS and self.error != "not finite"


def diagnose(judgement: Judgement) -> Diagnosis:
    """Recognize the error pattern at the first divergence from all tensors that differ there.

    Every tensor that differs with the first one, of its kind and at its moment, is looked at. A
    tensor with a telling signature stands for them; of gradients without one, the last in forward
    order, where backward begins.
    """
    first = judgement.first
    assert first is not None
    if other_weights(first, judgement):
        return single(first)._replace(error="weights")
    if first.pair.kind == "loss" and other_number(judgement, first.pair.moment.op):
        return single(first)._replace(error="microbatches")
    alike = [*_with(first, judgement)]
    if len(alike) < 2 or _tensors(first) is None or first.pair.kind in ALONE:
        return single(first)
    found = [one._replace(looked_at=len(alike)) for one in _looked_at(alike)]
    telling = [one for one in found if one.telling]
    if not telling:
        if first.pair.kind not in GRADIENTS:
            return found[0]
        # The last one in the microbatch in which the first one differs, if it is in one.
        return [one for one in found if _microbatch(one) == _microbatch(found[0])][-1]
    chosen = telling[0]
    same = [one.finding.pair.name for one in telling[1:] if one.signature == chosen.signature]
    if not same:
        return chosen
    which = "each of" if len(same) == len(found) - 1 else f"{len(same) + 1} of"
    words = f"{chosen.signature} in {which} {len(found)} tensors that differ"
    return chosen._replace(signature=words, likewise=tuple(same))


def by_rule(found: Diagnosis, breach: GradientBreach | None) -> Diagnosis:
    """Name a wrong way of accumulating gradients as the error, if no other pattern was recognized.

    Args:
        found: of the first divergence.
        breach: what the candidate's gradients were held to the workload's own for; None for none.
    """
    pair = found.finding.pair
    error = "accumulation"
    if breach is None or found.error or not breach.words or pair.kind not in GRADIENTS:
        return found
    same = (breach.step, breach.kind) == (pair.moment.step, pair.kind)
    return found._replace(signature=breach.words, error=error) if same else found


def _looked_at(alike: list[tuple[Finding, tuple[Tensor, Tensor]]]) -> list[Diagnosis]:
    """Look at all differing tensors: return the one error that they share, or else the error of
    each.

    A counter that stands still is half of the reference in step 2, and that is not what is wrong.
    """
    alone = [single(finding) for finding, _ in alike] if is_state(alike[0][0].pair.kind) else []
    if any(one.error in UPDATES for one in alone):
        return alone
    shared = pooled.signatures([Compared.of(finding.pair, *both) for finding, both in alike])
    if shared is None:
        return alone or [single(finding) for finding, _ in alike]
    pairs = zip(alike, shared, strict=True)
    return [_diagnosis(finding, signature) for (finding, _), signature in pairs]


def _diagnosis(finding: Finding, signature: Signature) -> Diagnosis:
    return Diagnosis(finding, signature.words, signature.error)


def _microbatch(diagnosis: Diagnosis) -> int | None:
    pair = diagnosis.finding.pair
    return TensorKey.of(pair.kind, pair.name).microbatch


def _with(first: Finding, judgement: Judgement) -> Iterator[tuple[Finding, tuple[Tensor, Tensor]]]:
    """Yield the tensors that differ in value at the first divergence, each from both runs."""
    seen = 0
    for finding in judgement.spread[first.pair.kind, first.pair.moment.op].findings:
        tensors = _tensors(finding)
        if finding.pair.moment == first.pair.moment and tensors is not None:
            seen += tensors[0].numel()
            if seen <= MOST:
                yield finding, tensors


def single(finding: Finding) -> Diagnosis:
    """Recognize the error pattern of a single differing tensor, without regard to other tensors."""
    tensors = _tensors(finding)
    if tensors is None:
        return Diagnosis(
            finding, finding.problem, finding.problem if finding.problem != "values" else ""
        )
    compared = Compared.of(finding.pair, *tensors)
    found = (
        extreme(*tensors)
        or of_history(finding.pair, *tensors)
        or pooled.scaled(finding.pair, form(*tensors, compared.unit))
    )
    if found.error == "factor" and tensors[0].numel() == 1 and finding.pair.kind not in NUMBERS:
        found = NO_SIGNATURE
    return _diagnosis(finding, found)


def _tensors(finding: Finding) -> tuple[Tensor, Tensor] | None:
    """Return the candidate's and the reference's tensor if only values differ; None otherwise."""
    pair = finding.pair
    if finding.problem != "values" or pair.candidate is None or pair.reference is None:
        return None
    ours, theirs = pair.candidate.tensor, pair.reference.tensor
    return None if ours is None or theirs is None else (ours, theirs)
