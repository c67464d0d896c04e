"""Recognize the error that the first difference shows, from all tensors that differ with it.

One tensor alone may have a factor by chance, and one element always has; all of them have one only
where it is the cause. What a backward rounds otherwise is a small share of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pytest_precision.engine.kinds import KINDS, is_state
from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.compare.divergences import Judgement
from pytest_precision.parity.compare.pairs import Pair
from pytest_precision.parity.compare.ratio import (
    COARSEST,
    LEAST_ELEMENTS,
    ROUNDINGS,
    Fit,
    constant_ratio,
)
from pytest_precision.parity.compare.signature import (
    ERRORS,
    NO_SIGNATURE,
    Signature,
    extreme,
    factor,
    fitted,
    form,
    is_measured,
    times,
)
from pytest_precision.parity.explain.history import (
    GRADIENTS,
    Compared,
    loss_scale,
    not_zeroed,
    of_history,
)
from pytest_precision.parity.explain.unlike import other_number, other_weights

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
    def has_pattern(self) -> bool:
        """Whether a pattern was recognized, and not only that there are NaN or infinities."""
        return self.error in ERRORS and self.error != "not finite"


def diagnose(judgement: Judgement) -> Diagnosis:
    """Recognize the error pattern of all tensors of the first divergence's kind and moment.

    Every tensor that differs with the first one, of its kind and at its moment, is looked at. A
    tensor with a telling signature stands for them; of gradients without one, the last in forward
    order, where backward begins.
    """
    first = judgement.first
    assert first is not None
    if other_weights(first, judgement):
        return diagnose_tensor(first)._replace(error="weights")
    if first.pair.kind == "loss" and other_number(judgement, first.pair.moment.op):
        return diagnose_tensor(first)._replace(error="microbatches")
    alike = [*_differing_tensors(first, judgement)]
    if len(alike) < 2 or Compared.of(first) is None or first.pair.kind in ALONE:
        return diagnose_tensor(first)
    diagnoses = [diagnosis._replace(looked_at=len(alike)) for diagnosis in _diagnoses(alike)]
    telling = [diagnosis for diagnosis in diagnoses if diagnosis.has_pattern]
    if not telling:
        if first.pair.kind not in GRADIENTS:
            return diagnoses[0]
        # The last one in the microbatch in which the first one differs, if it is in one.
        return [
            diagnosis
            for diagnosis in diagnoses
            if _microbatch(diagnosis) == _microbatch(diagnoses[0])
        ][-1]
    chosen = telling[0]
    same = [
        diagnosis.finding.pair.name
        for diagnosis in telling[1:]
        if diagnosis.signature == chosen.signature
    ]
    if not same:
        return chosen
    which = "each of" if len(same) == len(diagnoses) - 1 else f"{len(same) + 1} of"
    words = f"{chosen.signature} in {which} {len(diagnoses)} tensors that differ"
    return chosen._replace(signature=words, likewise=tuple(same))


class Blame(Protocol):
    """What a judgement says is wrong with the candidate's gradients alone.

    Attributes:
        step: in which it is first.
        kind: of the tensor.
        words: the mistake that explains it; empty for none.
    """

    step: int
    kind: str
    words: str


def by_rule(diagnosis: Diagnosis, breach: Blame | None) -> Diagnosis:
    """Name a wrong way of accumulating gradients as the error if no other is recognized.

    Args:
        diagnosis: of the first difference.
        breach: what the candidate's gradients differ by from the workload's, if they do.
    """
    pair = diagnosis.finding.pair
    if diagnosis.error or pair.kind not in GRADIENTS or breach is None or not breach.words:
        return diagnosis
    same = (breach.step, breach.kind) == (pair.moment.step, pair.kind)
    return diagnosis._replace(signature=breach.words, error="accumulation") if same else diagnosis


def _diagnoses(alike: list[Compared]) -> list[Diagnosis]:
    """Return the one error pattern that all differing tensors share, or else the pattern of each.

    A counter that stands still is half of the reference in step 2, and that is not what is wrong.
    """
    alone = (
        [diagnose_tensor(tensor.finding) for tensor in alike]
        if is_state(alike[0].pair.kind)
        else []
    )
    if any(diagnosis.error in UPDATES for diagnosis in alone):
        return alone
    shared = signatures(alike)
    if shared is None:
        return alone or [diagnose_tensor(tensor.finding) for tensor in alike]
    return [
        _diagnosis(tensor.finding, signature)
        for tensor, signature in zip(alike, shared, strict=True)
    ]


def _diagnosis(finding: Finding, signature: Signature) -> Diagnosis:
    return Diagnosis(finding, signature.words, signature.error)


def _microbatch(diagnosis: Diagnosis) -> int | None:
    pair = diagnosis.finding.pair
    return TensorKey.of(pair.kind, pair.name).microbatch


def _differing_tensors(first: Finding, judgement: Judgement) -> Iterator[Compared]:
    """Yield each tensor that differs in value at the first divergence, as a pair from both runs."""
    elements = 0
    for finding in judgement.spread[first.pair.kind, first.pair.moment.op].findings:
        compared = Compared.of(finding)
        if finding.pair.moment == first.pair.moment and compared is not None:
            elements += compared.ours.numel()
            if elements <= MOST:
                yield compared


def diagnose_tensor(finding: Finding) -> Diagnosis:
    """Recognize the error pattern of a single differing tensor, without regard to other tensors."""
    compared = Compared.of(finding)
    if compared is None:
        problem = finding.problem
        return Diagnosis(finding, problem, "" if problem == "values" else problem)
    _, ours, theirs, unit = compared
    signature = (
        extreme(ours, theirs)
        or of_history(finding.pair, ours, theirs)
        or scaled(finding.pair, form(ours, theirs, unit))
    )
    if signature.error == "factor" and ours.numel() == 1 and finding.pair.kind not in NUMBERS:
        signature = NO_SIGNATURE
    return _diagnosis(finding, signature)


LIKE = 4
"""How many times as much as all of them together a tensor may leave to share their factor: small
ones, whose terms cancel, carry more of the rounding."""


def signatures(compared: Sequence[Compared]) -> list[Signature] | None:
    """Return the error pattern of each tensor if a single error explains all; else None.

    Args:
        compared: all that differ of one kind at one moment, at least two.
    """
    if not all(is_measured(tensor.ours) for tensor in compared):
        return None
    ours, theirs = _joined(compared)
    if not bool(ours.isfinite().all() and theirs.isfinite().all()):
        return None
    if all(bool((side == side[0]).all()) for side in (ours, theirs)):
        return None  # one pair of numbers, which ranks of a replica have too, has some factor
    eps = max(torch.finfo(tensor.ours.dtype).eps for tensor in compared)
    exact = constant_ratio(ours, theirs, eps)
    if exact is not None:
        return [scaled(compared[0].pair, factor(exact))] * len(compared)
    unit = max(tensor.unit for tensor in compared)
    signature = not_zeroed(compared, unit)
    if signature is not None:
        return [signature] * len(compared)
    return _of_all(compared, unit) or _by_part(compared, unit)


def scaled(pair: Pair, signature: Signature) -> Signature:
    """Name a factor `the loss scale` where it equals the reference's loss scale."""
    scale = loss_scale(pair) if signature.ratio else None
    if not scale or scale == 1 or signature.ratio is None:  # many overflows make it 0
        return signature
    for value, words in ((scale, "the loss scale"), (1 / scale, "1 over the loss scale")):
        if abs(signature.ratio / value - 1) <= COARSEST:
            return Signature("loss scale", f"{signature.words}, which is {words}")
    return signature


def _joined(compared: Sequence[Compared]) -> tuple[Tensor, Tensor]:
    ours, theirs = zip(*(tensor.values for tensor in compared), strict=True)
    return torch.cat(ours), torch.cat(theirs)


def _of_all(compared: Sequence[Compared], unit: float) -> list[Signature] | None:
    """Return an error pattern per tensor if one factor explains all; None if none fits.

    A tensor that does not have the factor gets the empty signature.
    """
    fit = _fit(compared)
    if fit is None or not fit.explains(unit):
        return None
    said = scaled(compared[0].pair, fitted(fit))
    return [said if _shares(tensor, fit, unit) else NO_SIGNATURE for tensor in compared]


def _by_part(compared: Sequence[Compared], unit: float) -> list[Signature] | None:
    """Return the error pattern of one factor per part (rank and microbatch); None if none fits."""
    parts: dict[tuple[int | None, int | None], list[Compared]] = {}
    for tensor in compared:
        parts.setdefault(tensor.part, []).append(tensor)
    # A sum over microbatches has none from the second on, where each has a factor of its own.
    first = {part: tensors for part, tensors in parts.items() if part[1] == next(iter(parts))[1]}
    fits = {part: _fit(tensors) for part, tensors in first.items()}
    allowed = min(ROUNDINGS * unit, COARSEST)
    good_fits = {
        part: fit for part, fit in fits.items() if fit is not None and fit.residual <= allowed
    }
    if len(good_fits) < len(fits) or not any(fit.explains(unit) for fit in good_fits.values()):
        return None
    said = Signature("per rank", ", ".join(_where(fit, *part) for part, fit in good_fits.items()))
    return [said if tensor.part in good_fits else NO_SIGNATURE for tensor in compared]


def _where(fit: Fit, rank: int | None, microbatch: int | None) -> str:
    after = "" if microbatch is None else f" in microbatch {microbatch}"
    on = "" if rank is None else f" on rank {rank}"
    return f"{times(fit.factor, exact=False)}{after}{on}"


def _fit(compared: Sequence[Compared]) -> Fit | None:
    ours, theirs = _joined(compared)
    return Fit.of(ours, theirs) if len(ours) >= LEAST_ELEMENTS else None


def _shares(tensor: Compared, fit: Fit, unit: float) -> bool:
    """Return whether the factor common to all tensors also explains this tensor's difference."""
    ours, theirs = tensor.values
    rest = float((ours - fit.factor * theirs).norm())
    return rest <= LIKE * min(ROUNDINGS * unit, COARSEST) * abs(fit.factor) * float(theirs.norm())
