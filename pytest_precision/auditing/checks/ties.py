"""Ties: one weight under several names, and weights that a model says are tied and are not."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from pytest_precision.auditing.facts import SetupFacts
from pytest_precision.auditing.finding import AuditFinding


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


def broken(facts: SetupFacts) -> Iterator[AuditFinding]:
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


def _embeddings(module: nn.Module) -> list[nn.Parameter]:
    if not getattr(getattr(module, "config", None), "tie_word_embeddings", False):
        return []
    ways = ("get_input_embeddings", "get_output_embeddings")
    found = [getattr(module, way)() for way in ways if hasattr(module, way)]
    weights = [getattr(embedding, "weight", None) for embedding in found]
    return (
        [w for w in weights if w is not None] if len(weights) == 2 and None not in weights else []
    )
