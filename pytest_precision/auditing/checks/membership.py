"""Check that optimizers update the model's own parameters, and each of them once.

A weight with several names is one tensor, and so are two that a model says are tied.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch.distributed as dist
from torch import nn

from pytest_precision.auditing.facts import SetupFacts
from pytest_precision.auditing.finding import AuditFinding


def foreign_tensors(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield errors if optimizers update what is neither a parameter of the model nor a master."""
    descriptions = {
        "foreign": "tensors that are no parameters of the model, nor round to one",
        "copy": "copies of the model's parameters, which stay as they are",
    }
    for relation, words in descriptions.items():
        tensors = [updated for updated in facts.ownership.updated if updated.relation == relation]
        if not tensors:
            continue
        yield AuditFinding(
            "foreign-parameters",
            "error",
            f"{tensors[0].holder.name} updates {words}",
            "make the optimizer after the model is cast, moved, wrapped or sharded, and from that "
            "model",
            tuple(f"{updated.place}: {tuple(updated.tensor.shape)}" for updated in tensors),
        )


def stale_masters(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield an error if master weights do not round to the parameters that they update."""
    masters = [master for master in facts.ownership.updated if master.relation == "stale"]
    if masters:
        yield AuditFinding(
            "stale-master",
            "error",
            f"masters of {masters[0].holder.name} do not round to their parameters, which the next "
            "step overwrites with them",
            "copy the parameters into the masters after a checkpoint of the model alone is loaded",
            tuple(name for master in masters for name in master.names),
        )


def idle_optimizers(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield an error for each optimizer that has no parameter to train."""
    tensors: dict[int, list[Any]] = {id(holder): [] for holder in facts.ownership.holders}
    for updated in facts.ownership.updated:
        tensors[id(updated.holder)].append(updated)
    for holder in facts.ownership.holders:
        trains = any(
            updated.tensor.requires_grad or updated.relation != "own"
            for updated in tensors[id(holder)]
        )
        if not trains and not holder.in_framework:
            yield AuditFinding(
                "nothing-to-train",
                "error",
                f"{holder.name} has no parameter that requires gradients",
                "make it after the parameters are thawed with requires_grad_(True)",
                (holder.name,),
            )


def ungrouped_parameters(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a warning if there are trainable parameters that no optimizer updates."""
    if _is_sharded(facts):
        return
    names = [name for name, _ in facts.trained() if name not in facts.ownership.by_name]
    if names and not any(
        updated.relation in ("foreign", "copy") for updated in facts.ownership.updated
    ):
        yield AuditFinding(
            "in-no-group",
            "warning",
            "parameters that require gradients are in no group of an optimizer, so that they never "
            "move, while the norm of all gradients counts theirs",
            "add them to a group, or freeze them with requires_grad_(False)",
            tuple(names),
        )


def doubly_grouped_parameters(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield an error if a step updates some parameters twice."""
    names = [
        name
        for name, several in facts.ownership.by_name.items()
        if sum(updated.relation == "own" for updated in several) > 1
    ]
    if names:
        yield AuditFinding(
            "in-two-groups",
            "error",
            "parameters are in two groups, so that each step updates them twice",
            "leave them in one group of one optimizer",
            tuple(names),
        )


def ties(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a note for each tensor that has several names in the model."""
    for names in facts.setup.names.aliases():
        yield AuditFinding(
            "tied",
            "note",
            "one weight has several names",
            "keep it one weight in checkpoints, and in one unit where modules are sharded",
            names,
        )


def broken_ties(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield an error if a Hugging Face model's embeddings are declared tied but are two tensors."""
    for model in facts.setup.models:
        for name, module in model.named_modules():
            weights = _embeddings(module)
            if weights and weights[0] is not weights[1]:
                yield AuditFinding(
                    "tie-broken",
                    "error",
                    "tie_word_embeddings is set, and input and output embeddings are two tensors",
                    "call tie_weights() after the model is loaded or moved, and shard both "
                    "embeddings in one unit",
                    (name or type(module).__name__,),
                )


def _is_sharded(facts: SetupFacts) -> bool:
    """Return whether master weights may be sharded, so that this rank may lack some of them."""
    elsewhere = any(updated.relation == "master" for updated in facts.ownership.updated)
    return elsewhere and dist.is_initialized() and dist.get_world_size() > 1


def _embeddings(module: nn.Module) -> list[Any]:
    if not getattr(getattr(module, "config", None), "tie_word_embeddings", False):
        return []
    ways = ("get_input_embeddings", "get_output_embeddings")
    embeddings = [getattr(module, way)() for way in ways if hasattr(module, way)]
    weights = [getattr(embedding, "weight", None) for embedding in embeddings]
    return weights if len(weights) == 2 and None not in weights else []
