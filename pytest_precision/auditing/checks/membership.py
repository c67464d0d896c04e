"""Membership: whether the optimizers hold the model's own parameters, and each of them once."""

from __future__ import annotations

from collections.abc import Iterator

import torch.distributed as dist

from pytest_precision.auditing.facts import SetupFacts
from pytest_precision.auditing.finding import AuditFinding


def foreign(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield an error if an optimizer updates tensors that are not the model's, nor masters."""
    what = {
        "foreign": "tensors that are no parameters of the model, nor round to one",
        "copy": "copies of the model's parameters, which stay as they are",
    }
    for relation, words in what.items():
        found = [one for one in facts.ownership.updated if one.relation == relation]
        if not found:
            continue
        yield AuditFinding(
            "foreign-parameters",
            "error",
            f"{found[0].holder.name} updates {words}",
            "make the optimizer after the model is cast, moved, wrapped or sharded, and from that "
            "model",
            tuple(f"{one.place}: {tuple(one.tensor.shape)}" for one in found),
        )


def stale(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield an error if master weights do not round to the parameters that they update."""
    found = [one for one in facts.ownership.updated if one.relation == "stale"]
    if found:
        yield AuditFinding(
            "stale-master",
            "error",
            f"masters of {found[0].holder.name} do not round to their parameters, which the next "
            "step overwrites with them",
            "copy the parameters into the masters after a checkpoint of the model alone is loaded",
            tuple(name for one in found for name in one.names),
        )


def missing(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a warning if no optimizer updates some trainable parameters."""
    if _is_sharded(facts):
        return
    found = [name for name, _ in facts.trained() if name not in facts.ownership.by_name]
    if found and not any(one.relation in ("foreign", "copy") for one in facts.ownership.updated):
        yield AuditFinding(
            "in-no-group",
            "warning",
            "parameters that require gradients are in no group of an optimizer, so that they never "
            "move, while the norm of all gradients counts theirs",
            "add them to a group, or freeze them with requires_grad_(False)",
            tuple(found),
        )


def twice(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield an error if a step updates some parameters twice."""
    found = [
        name
        for name, several in facts.ownership.by_name.items()
        if sum(one.relation == "own" for one in several) > 1
    ]
    if found:
        yield AuditFinding(
            "in-two-groups",
            "error",
            "parameters are in two groups, so that each step updates them twice",
            "leave them in one group of one optimizer",
            tuple(found),
        )


def _is_sharded(facts: SetupFacts) -> bool:
    """Return whether ranks share master weights, so that this rank lacks some of them."""
    elsewhere = any(one.relation == "master" for one in facts.ownership.updated)
    return elsewhere and dist.is_initialized() and dist.get_world_size() > 1
