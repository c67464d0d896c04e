"""Check for updates lost in a parameter's dtype, and optimizer state of low precision.

torch's optimizers compute in the dtype of the parameter and make their state like it. A policy of
mixed precision does not change that: it says in which dtype is computed, not in which is stored.

The share of updates that a parameter in few digits loses follows from its values alone. An update
`u` of a parameter `p` is lost where `p + u` rounds to `p`. With 7 stored bits of significand, as
bf16 has, numbers of magnitude 2^e to 2^(e+1) lie 2^(e-7) apart, so `u` is lost below half of that,
2^(e-8): where |p| is above 256 to 512 times |u|. Below a power of two, numbers lie closer by half,
so a step down from there is lost below 2^(e-9) only.

Adam's update is about the learning rate: it is exactly that in the first step, where both moments
are of one gradient, and rarely more later (Kingma and Ba, "Adam", section 2.1: |u| is bounded by
about the rate). So what is lost at |u| = rate is a lower estimate.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from pytest_precision.auditing.facts import SetupFacts
from pytest_precision.auditing.finding import AuditFinding, below_fp32, short_dtype
from pytest_precision.auditing.master_weights import Updated
from pytest_precision.auditing.optimizer_facts import MASTER_NAMES, PRECISE, MasterRounding

REMEDY = (
    "keep fp32 storage with MixedPrecisionPolicy(param_dtype=torch.bfloat16), "
    "or Transformer Engine's FusedAdam(master_weights=True)"
)

FEW_LOST = 0.01
"""Share of updates up to which their loss is no error: it grows as a schedule lowers the rate."""

SAMPLED_ELEMENTS = 1 << 16
"""Elements that are looked at in each tensor, evenly spread."""

AFTER_A_STEP = "audit once more after one step, when its state can be read"


def updates(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield findings on weights that are updated below fp32, where small updates are lost."""
    bare = [
        updated
        for updated in facts.ownership.updated
        if below_fp32(updated.tensor.dtype)
        and (
            updated.relation == "master"
            or (updated.relation == "own" and updated.tensor.requires_grad)
        )
    ]
    rounded = [(updated, rounding(facts, updated)) for updated in bare]
    for name, dtype, several in _by_kind(updated for updated, how in rounded if how == "nearest"):
        state_dtypes = several[0].holder.states(several[0].tensor, several[0].group) or {}
        subject = (
            "moments and update are"
            if any(map(below_fp32, state_dtypes.values()))
            else "the update is"
        )
        share, words = _share_lost(facts, several)
        yield AuditFinding(
            "update-below-fp32",
            "error" if share is None or share >= FEW_LOST else "warning",
            f"{name} on {dtype} parameters: {subject} {dtype}{words}",
            REMEDY,
            tuple(name for updated in several for name in updated.names),
        )
    for name, dtype, several in _by_kind(updated for updated, how in rounded if how == "unknown"):
        yield AuditFinding(
            "update-unknown",
            "warning",
            f"{name} on {dtype} parameters: no master weights can be seen"
            f"{_share_lost(facts, several)[1]}",
            AFTER_A_STEP,
            tuple(name for updated in several for name in updated.names),
        )


def rounding(facts: SetupFacts, updated: Updated) -> MasterRounding:
    """Return how updates of a tensor are rounded, as its optimizer says or a step on a copy shows.

    A step on a copy tells stochastic rounding from rounding to nearest, and not whether what is
    lost is kept in a master.
    """
    how = updated.holder.rounding(updated.tensor, updated.group)
    if how in ("nearest", "unknown"):
        trial = facts.trials.of(updated)
        if trial is not None and trial.stochastic:
            return "stochastic"
    return how


def states(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a note if an optimizer has moments below fp32 but loses no update to rounding."""
    grouped_names: dict[tuple[str, str], list[str]] = {}
    for updated in facts.ownership.updated:
        if rounding(facts, updated) not in ("nearest", "unknown"):
            low = _low(updated.holder.states(updated.tensor, updated.group) or {})
            if low:
                grouped_names.setdefault((updated.holder.name, low), []).extend(updated.names)
    for (name, low), names in grouped_names.items():
        yield AuditFinding(
            "state-below-fp32",
            "note",
            f"{name} keeps {low}",
            "state in fp32 costs memory and rounds less",
            tuple(names),
        )


def doubled_masters(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a note if an optimizer keeps master weights of fp32 parameters."""
    tensors = [
        updated
        for updated in facts.ownership.updated
        if updated.relation == "own"
        and updated.tensor.dtype in PRECISE
        and not MASTER_NAMES.isdisjoint(updated.holder.states(updated.tensor, updated.group) or {})
    ]
    for name, dtype, several in _by_kind(tensors):
        yield AuditFinding(
            "master-doubled",
            "note",
            f"{name} keeps a master of {dtype} parameters, which it does not need",
            "store the model in bf16, or leave masters to the parameters: master_weights=False",
            tuple(name for updated in several for name in updated.names),
        )


def lost_decay(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a warning if rounding loses weight decay in an optimizer that loses no update.

    `1 - rate * decay` times a bf16 parameter rounds to the parameter where `rate * decay < 2**-9`.
    """
    grouped_names: dict[tuple[str, str, float], list[str]] = {}
    for updated in facts.ownership.updated:
        product = peak_rate(updated.group) * updated.group.get("weight_decay", 0.0)
        if product > 0 and _loses_decay(facts, updated, product):
            grouped_names.setdefault((*_kind(updated), product), []).extend(updated.names)
    for (name, dtype, product), names in grouped_names.items():
        yield AuditFinding(
            "decay-lost",
            "warning",
            f"{name} on {dtype} parameters: a weight decay of {product:.1e} per step multiplies "
            "the parameter itself, which rounds it away",
            "raise weight_decay, or keep fp32 storage",
            tuple(names),
        )


def _loses_decay(facts: SetupFacts, updated: Updated, product: float) -> bool:
    how = rounding(facts, updated)
    if how == "compensated":
        return product < torch.finfo(updated.tensor.dtype).eps / 4
    trial = facts.trials.of(updated) if how == "stochastic" else None
    return trial is not None and trial.decay_lost


def _by_kind(tensors: Iterable[Updated]) -> Iterator[tuple[str, str, list[Updated]]]:
    """Yield an optimizer's name, a dtype, and the tensors of that dtype that it updates."""
    for kind, several in groupby(sorted(tensors, key=_kind), key=_kind):
        yield *kind, [*several]


def _kind(updated: Updated) -> tuple[str, str]:
    return updated.holder.name, short_dtype(updated.tensor.dtype)


def _share_lost(facts: SetupFacts, several: list[Updated]) -> tuple[float | None, str]:
    """Return the share of updates that rounding loses, and words on it; None if it is unknown."""
    if not several[0].holder.moves_by_its_rate:
        of_torch = type(several[0].holder.optimizer).__module__.startswith("torch.optim")
        # The first steps of torch's others are larger than the later ones.
        trial = None if of_torch else facts.trials.of(several[0])
        if trial is None or trial.lost is None:
            return None, ""
        return trial.lost, f", and in one step on a copy about {trial.lost:.0%} of it round away"
    tensors = [(_local(updated), peak_rate(updated.group)) for updated in several]
    share = lost_together(tensors)
    if share is None:
        return None, ""
    rates = sorted({rate for _, rate in tensors})
    at = " and ".join(f"{rate:g}" for rate in (rates if len(rates) < 3 else (rates[0], rates[-1])))
    words = f", and of updates as large as the learning rate ({at}) about {share:.0%} round away"
    return share, words


def _local(updated: Updated) -> Any:
    return updated.tensor.to_local() if hasattr(updated.tensor, "to_local") else updated.tensor


def _low(states: Mapping[str, torch.dtype]) -> str:
    return ", ".join(f"{name} in {short_dtype(d)}" for name, d in states.items() if below_fp32(d))


def lost_share(tensor: Tensor, update: float) -> tuple[float, int]:
    """Return the share of elements that an update leaves unchanged, and the tensor's element count.

    Half of the elements move up and half down, so both directions count.

    Args:
        tensor: parameter, as stored.
        update: magnitude of the update of each element.
    """
    values = tensor.detach().flatten()
    values = values[:: max(1, -(-values.numel() // SAMPLED_ELEMENTS))]
    exact_tensor = values.double()
    still = [
        ((exact_tensor + step).to(tensor.dtype) == values).double().mean()
        for step in (update, -update)
    ]
    return (float(sum(still)) / 2, tensor.numel()) if values.numel() else (0.0, 0)


def lost_together(tensors: Iterable[tuple[Tensor, float]]) -> float | None:
    """Return the share of updates that rounding loses, over all elements of several tensors.

    None where no rate is above 0, since that of a warm-up says nothing about later steps, and for
    tensors without values.
    """
    shares = [
        lost_share(tensor, rate) for tensor, rate in tensors if rate > 0 and not tensor.is_meta
    ]
    total = sum(size for _, size in shares)
    return sum(share * size for share, size in shares) / total if total else None


def peak_rate(group: Mapping[str, Any]) -> float:
    """Return the highest learning rate in a parameter group: current, initial or maximal.

    Schedulers keep the initial or the highest one beside the current.

    Args:
        group: parameter group of an optimizer.
    """
    rates = (group.get(name, 0.0) for name in ("lr", "initial_lr", "max_lr"))
    return max(float(rate) for rate in rates if rate is not None)
