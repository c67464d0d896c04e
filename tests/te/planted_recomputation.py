"""Layers of Transformer Engine that compute their forward again in backward, run on ranks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from pytest_precision import Cell, Engine, Workload, layouts, workloads
from pytest_precision.te import cuda

MICROBATCHES = 3

Loop = Callable[[Any, Tensor, bool], Tensor]


@layouts.uses_transformer_engine
def recomputing(workload: Workload, cell: Cell) -> Engine:
    """Train blocks that keep only their inputs for backward, by `transformer_engine.checkpoint`."""
    import transformer_engine.pytorch as te

    engine = layouts.te_blocks(workload, cell)
    for block in engine.model.blocks:  # type: ignore[union-attr]
        block.forward = partial(te.checkpoint, block.forward, use_reentrant=cell.reentrant)
    return engine


@layouts.uses_transformer_engine
def scales_behind_autocast(reentrant: bool) -> list[bool]:
    """Enter `autocast` in what is recomputed; return whether outputs are those without that.

    Returns:
        One a microbatch, of which the second is the first that has a scale.
    """
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling

    recipe = DelayedScaling()

    def plain(layer: Any, x: Tensor, first: bool) -> Tensor:
        with te.autocast(recipe=recipe):
            made: Tensor = layer(x, is_first_microbatch=first)
        return made

    def again(layer: Any, x: Tensor, first: bool) -> Tensor:
        made: Tensor = te.checkpoint(plain, layer, x, first, use_reentrant=reentrant)
        return made

    kept, recomputed = (_trained(te.Linear(64, 64, **_options()), loop) for loop in (plain, again))
    return [torch.equal(a[0], b[0]) for a, b in zip(kept, recomputed, strict=True)]


@layouts.uses_transformer_engine
def recomputed_operations(fused: bool) -> list[bool]:
    """Recompute a layer in delayed scaling within `autocast`; return whether outputs are the same.

    Args:
        fused: whether it is an operation of `transformer_engine.pytorch.ops`, not a module.
    """
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling

    recipe = DelayedScaling()

    def made() -> Any:
        options = {"dtype": torch.bfloat16, "device": "cuda"}
        torch.manual_seed(0)
        if fused:
            return te.ops.Sequential(*(te.ops.Linear(64, 64, **options) for _ in range(2)))
        return torch.nn.Sequential(*(te.Linear(64, 64, params_dtype=torch.bfloat16) for _ in "12"))

    def plain(layer: Any, x: Tensor, first: bool) -> Tensor:
        with te.autocast(recipe=recipe):
            result: Tensor = layer(x)
        return result

    def again(layer: Any, x: Tensor, first: bool) -> Tensor:
        with te.autocast(recipe=recipe):
            result: Tensor = te.checkpoint(layer, x)
        return result

    kept, recomputed = (_trained(made(), loop) for loop in (plain, again))
    return [torch.equal(a[0], b[0]) for a, b in zip(kept, recomputed, strict=True)]


@layouts.uses_transformer_engine
def recomputing_mlp(cached: bool) -> list[tuple[bool, bool]]:
    """Train `LayerNormMLP(checkpoint=True)` beside one that keeps its activations.

    Args:
        cached: whether weights are quantized in the first microbatch alone.

    Returns:
        Whether output and gradients are the same, one pair a microbatch.
    """
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling

    recipe = DelayedScaling()

    def loop(layer: Any, x: Tensor, first: bool) -> Tensor:
        with te.autocast(recipe=recipe):
            made: Tensor = layer(x, is_first_microbatch=first if cached else None)
        return made

    kept, recomputed = (
        _trained(te.LayerNormMLP(64, 128, checkpoint=again, **_options()), loop)
        for again in (False, True)
    )
    return [
        (torch.equal(a[0], b[0]), all(map(torch.equal, a[1:], b[1:])))
        for a, b in zip(kept, recomputed, strict=True)
    ]


@layouts.fresh_ranks
@layouts.uses_transformer_engine
def recomputing_mlp_on_hopper() -> list[list[tuple[bool, bool]]]:
    """Do so on compute capability 9.0, without cached weights and with them."""
    cuda.enter((9, 0))
    return [recomputing_mlp(cached) for cached in (False, True)]


def _options() -> dict[str, Any]:
    """Return the options of a layer, whose first weights are those of the layer before."""
    torch.manual_seed(0)
    return {"params_dtype": torch.bfloat16}


def _trained(layer: Any, loop: Loop) -> list[list[Tensor]]:
    """Return the output and all gradients of each microbatch."""
    torch.manual_seed(1)
    found = []
    for number in range(MICROBATCHES):
        x = torch.randn(32, 64, device="cuda").bfloat16().requires_grad_()
        y = loop(layer, x, number == 0)
        y.float().square().sum().backward()
        found.append([y.detach(), *(weight.grad.clone() for weight in layer.parameters())])
    return found


@layouts.uses_transformer_engine
def histories_after_a_run() -> int:
    """Train an engine of delayed scaling; return how many histories are updated with its own."""
    from transformer_engine.pytorch.quantization import FP8GlobalStateManager as State

    engine = layouts.te_linears(workloads.mlp(width=64, depth=1), Cell("fp8_delayed"))
    engine.forward_backward(1)
    held = State.quantization_state.global_amax_history_buffer
    return sum(map(len, held.values()))


@layouts.uses_transformer_engine
def called_before_an_engine() -> list[bool]:
    """Call a layer, make an engine, and call the layer; return whether its scale is new, twice."""
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import DelayedScaling

    layer = te.Linear(64, 64, **_options())
    found = []
    for _ in range(2):
        with te.autocast(recipe=DelayedScaling()):
            layer(torch.randn(32, 64, device="cuda").bfloat16())
        scales = layer.fp8_meta["scaling_fwd"].scale
        found.append(bool((scales[:2] != 1).all()))
        scales.fill_(1)
        layouts.te_linears(workloads.mlp(width=64, depth=1), Cell("fp8_delayed"))
    return found
