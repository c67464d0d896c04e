"""Updates that the dtype of a parameter cannot hold, and optimizer state in few digits.

torch's optimizers compute in the dtype of the parameter and make their state like it. A policy of
mixed precision does not change that: it says in which dtype is computed, not in which is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import torch

from pytest_precision.auditing.facts import SetupFacts
from pytest_precision.auditing.finding import AuditFinding, below_fp32, short_dtype
from pytest_precision.auditing.master_weights import Updated
from pytest_precision.auditing.optimizer_facts import MASTER_NAMES, PRECISE
from pytest_precision.auditing.weight_rounding import lost_together, peak_rate

REMEDY = (
    "keep fp32 storage with MixedPrecisionPolicy(param_dtype=torch.bfloat16), "
    "or Transformer Engine's FusedAdam(master_weights=True)"
)

AFTER_A_STEP = "audit once more after one step, when its state can be read"


def updates(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield findings on weights that are updated below fp32, where small updates are lost."""
    bare = [
        one
        for one in facts.ownership.updated
        if below_fp32(one.tensor.dtype)
        and (one.relation == "master" or (one.relation == "own" and one.tensor.requires_grad))
    ]
    for rounding, rule in (("nearest", _lost), ("unknown", _unknown)):
        found = [one for one in bare if one.holder.rounding(one.tensor, one.group) == rounding]
        for _, several in groupby(sorted(found, key=_kind), key=_kind):
            yield rule([*several])


def states(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a note if an optimizer has moments below fp32 but loses no update to rounding."""
    kept: dict[tuple[str, str], list[str]] = {}
    for one in facts.ownership.updated:
        if one.holder.rounding(one.tensor, one.group) not in ("nearest", "unknown"):
            low = _low(one.holder.states(one.tensor, one.group) or {})
            if low:
                kept.setdefault((one.holder.name, low), []).extend(one.names)
    for (name, low), names in kept.items():
        yield AuditFinding(
            "state-below-fp32",
            "note",
            f"{name} keeps {low}",
            "state in fp32 costs memory and rounds less",
            tuple(names),
        )


def doubled(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a note if an optimizer keeps master weights of fp32 parameters."""
    found = [
        one
        for one in facts.ownership.updated
        if one.relation == "own"
        and one.tensor.dtype in PRECISE
        and not MASTER_NAMES.isdisjoint(one.holder.states(one.tensor, one.group) or {})
    ]
    for kind, several in groupby(sorted(found, key=_kind), key=_kind):
        name, dtype = kind
        yield AuditFinding(
            "master-doubled",
            "note",
            f"{name} keeps a master of {dtype} parameters, which it does not need",
            "store the model in bf16, or leave masters to the parameters: master_weights=False",
            tuple(name for one in several for name in one.names),
        )


def lost_decay(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a warning if rounding loses the weight decay of an optimizer with compensation.

    `1 - rate * decay` times a bf16 parameter rounds to the parameter where `rate * decay < 2**-9`.
    """
    found: dict[tuple[str, str, float], list[str]] = {}
    for one in facts.ownership.updated:
        product = peak_rate(one.group) * one.group.get("weight_decay", 0.0)
        compensated = one.holder.rounding(one.tensor, one.group) == "compensated"
        if compensated and 0 < product < torch.finfo(one.tensor.dtype).eps / 4:
            found.setdefault((*_kind(one), product), []).extend(one.names)
    for (name, dtype, product), names in found.items():
        yield AuditFinding(
            "decay-lost",
            "warning",
            f"{name} on {dtype} parameters: a weight decay of {product:.1e} per step multiplies "
            "the parameter itself, which rounds it away",
            "raise weight_decay, or keep fp32 storage",
            tuple(names),
        )


def _kind(one: Updated) -> tuple[str, str]:
    return one.holder.name, short_dtype(one.tensor.dtype)


def _lost(several: list[Updated]) -> AuditFinding:
    name, dtype = _kind(several[0])
    kept = several[0].holder.states(several[0].tensor, several[0].group) or {}
    moments = [key for key, stored in kept.items() if below_fp32(stored)]
    what = f"{'moments and update are' if moments else 'the update is'} {dtype}"
    return AuditFinding(
        "update-below-fp32",
        "error",
        f"{name} on {dtype} parameters: {what}{_estimate(several)}",
        REMEDY,
        tuple(name for one in several for name in one.names),
    )


def _unknown(several: list[Updated]) -> AuditFinding:
    name, dtype = _kind(several[0])
    return AuditFinding(
        "update-unknown",
        "warning",
        f"{name} on {dtype} parameters: no master weights can be seen{_estimate(several)}",
        AFTER_A_STEP,
        tuple(name for one in several for name in one.names),
    )


def _estimate(several: list[Updated]) -> str:
    """Return text with the share of updates that rounding loses; empty if it is unknown."""
    if not several[0].holder.moves_by_its_rate:
        return ""
    tensors = [(_local(one), peak_rate(one.group)) for one in several]
    share = lost_together(tensors)
    if share is None:
        return ""
    rates = sorted({rate for _, rate in tensors})
    at = " and ".join(f"{rate:g}" for rate in (rates if len(rates) < 3 else (rates[0], rates[-1])))
    return f", and of updates as large as the learning rate ({at}) about {share:.0%} round away"


def _local(one: Updated) -> Any:
    return one.tensor.to_local() if hasattr(one.tensor, "to_local") else one.tensor


def _low(states: Mapping[str, torch.dtype]) -> str:
    return ", ".join(f"{name} in {short_dtype(d)}" for name, d in states.items() if below_fp32(d))
