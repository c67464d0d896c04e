"""Chosen experts: which ones Megatron-core's routers choose for each token, and how narrowly."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

_KEPT = "_last_choice"
"""Attribute of a router: what its last forward has chosen, and the margins."""


@torch.no_grad()
def experts_by_token(model: Any) -> None:
    """Set weights so that each token's id decides its experts, by a margin above any rounding.

    Random routers choose some experts by a margin of rounding, so that ranks that share layers
    choose others than one rank does. Call it after `weights_by_name`.

    Args:
        model: a `GPTModel` as Megatron-core has built it; rows of its embedding and the weights of
            its routers are changed in place, so that token t goes to expert t and those after it.
    """
    routers = [*_routers(model)]
    embedding = model.embedding.word_embeddings
    tokens = embedding.vocab_start_index + torch.arange(len(embedding.weight))
    for router in routers:
        router.weight.copy_(torch.eye(*router.weight.shape))
    for more in range(routers[0].topk):
        experts = (tokens + more) % len(routers[0].weight)
        embedding.weight[torch.arange(len(tokens)), experts] = 1.0


def keep_choices(model: nn.Module) -> None:
    """Make each router of a Megatron-core model store which experts its last forward chose."""
    for router in _routers(model):
        router.register_forward_hook(_keep)


def _routers(model: nn.Module) -> Iterator[Any]:
    return (module for module in model.modules() if hasattr(module, "routing_type"))


def last_choices(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """Return which experts each token went to in the last forward, and by what margin.

    This is a collective where ranks share sequences.

    Returns:
        Name to int64 `[tokens, experts of a token]`, in ascending order and -1 for each that was
        dropped, and fp32 `[tokens]`: by how much the logit of the least expert that was chosen is
        above that of any other one, NaN where more than logits has decided.
    """
    choices = {}
    for name, router in model.named_modules():
        if hasattr(router, _KEPT):
            chosen_tensor, margin = (
                _of_whole_sequences(router, rows) for rows in getattr(router, _KEPT)
            )
            choices[f"{name}: expert of token"] = chosen_tensor, margin
    return choices


@torch.no_grad()
def _keep(router: Any, inputs: tuple[Tensor, ...], result: tuple[Tensor, Tensor]) -> None:
    takes = result[1]
    logits = router.gating(inputs[0]).float().reshape(takes.shape)
    numbers = torch.arange(takes.shape[1], device=takes.device)
    # Others come last in order, so that the first ones are those that were chosen.
    order = torch.where(takes, numbers, takes.shape[1]).sort(1).values[:, : router.topk]
    chosen_tensor = order.masked_fill(order == takes.shape[1], -1)
    least = logits.masked_fill(~takes, torch.inf).amin(1)
    margin = least - logits.masked_fill(takes, -torch.inf).amax(1)
    setattr(router, _KEPT, (chosen_tensor, margin.masked_fill(margin < 0, torch.nan)))


def _of_whole_sequences(router: Any, rows: Tensor) -> Tensor:
    """Gather the rows of whole sequences, if sequence parallelism splits them over the ranks."""
    if not router.config.sequence_parallel:
        return rows
    mappings = import_module("megatron.core.tensor_parallel.mappings")
    whole_tensor: Tensor = mappings.gather_from_sequence_parallel_region(rows.contiguous())
    return whole_tensor
