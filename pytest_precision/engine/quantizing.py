"""What an engine asks of modules that quantize: their state, what they multiply by, their paths.

The engine knows none of these modules: they are of another package, or of a framework.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from pytest_precision.engine.read_only import ReadOnly


class Quantizing(nn.Module):
    """A module that quantizes; each method does or yields nothing unless it is overridden.

    Attributes:
        taken: the paths of `contract.PATHS` that forwards have taken.
    """

    taken: set[str]

    def begin_microbatch(self, name: str, step: int, microbatch: int, *, first: bool) -> None:
        """Prepare for the next forward; the arguments are those of the function of this name.

        Args:
            name: of this module in the model.
            step: number of the train step.
            microbatch: its number among those of all ranks.
            first: whether weights may have changed since the last forward.
        """

    def quantized_state(self, name: str) -> Iterator[tuple[str, str, Tensor]]:
        """Yield (kind, name, tensor) of scales and amaxes of this module that outlive a step.

        Args:
            name: of this module in the model.
        """
        return iter(())

    def used_quantized(self, name: str) -> Iterator[tuple[str, Tensor]]:
        """Yield name and tensor of the quantized weights that the last forward multiplied by.

        Args:
            name: of this module in the model.
        """
        return iter(())


class StepScaling(Quantizing):
    """A module whose scale follows from the amaxes of earlier steps.

    Its buffers are quantized state, not buffers of the model.

    Attributes:
        of_primary_weight: whether the owner of the weight calls `update` whenever it quantizes;
            `finish_step` then does not.
    """

    of_primary_weight: bool

    def recorded_amax(self) -> Tensor:
        """Return the amax of the present step, fp32 [1], in the memory where it is recorded."""
        raise NotImplementedError

    def update(self) -> None:
        """Advance the amax history by one step, and compute the scale of the next step from it."""
        raise NotImplementedError


def begin_microbatch(model: nn.Module, step: int, microbatch: int, *, first: bool) -> None:
    """Set the step and microbatch number of the next forward on a model's quantizing modules.

    Args:
        model: a model with or without such modules.
        step: number of the train step.
        microbatch: its number among those of all ranks; step and microbatch choose random bits.
        first: whether to quantize the weights anew, since they have changed.
    """
    for name, module in model.named_modules():
        if isinstance(module, Quantizing):
            module.begin_microbatch(name, step, microbatch, first=first)


@torch.no_grad()
def finish_step(model: nn.Module, reduce_amax: Callable[[Tensor], Tensor] | None = None) -> None:
    """Advance delayed scaling by one step; call this once, after the last backward of a step.

    The amax is that of all microbatches on all ranks, so it does not depend on how the step is
    divided. Transformer Engine updates when an outermost autocast ends, and for gradients when the
    backward of its first module ends: once per microbatch if each has its own autocast. Recipes
    without state need no update.

    Args:
        model: the model whose states are updated, in the order of its modules.
        reduce_amax: takes the MAX of fp32 [n] over the ranks; called once, with all amaxes.
    """
    states = [state for _, state in scaling_states(model) if not state.of_primary_weight]
    if not states:
        return
    if reduce_amax is not None:
        amaxes = reduce_amax(torch.cat([state.recorded_amax() for state in states]))
        for state, amax in zip(states, amaxes, strict=True):
            state.recorded_amax().fill_(amax)
    for state in states:
        state.update()


def scaling_states(model: nn.Module) -> Iterator[tuple[str, StepScaling]]:
    """Yield name and module of each state of delayed scaling (scale, amax history) in a model."""
    for name, module in model.named_modules():
        if isinstance(module, StepScaling):
            yield name, module


def quantized_state(model: nn.Module) -> Iterator[tuple[str, str, Tensor]]:
    """Yield (kind, name, tensor) of quantized bytes, scales and amaxes kept between steps.

    A quantized parameter has bytes (kind `quantized`), scales (`scale`) and amaxes (`amax`), with
    names such as `up.weight.rowwise`. A state of delayed scaling has a `scale`; a history (`amax`),
    which is the same on all ranks; and the amax that is being recorded (`recorded_amax`), which is
    this rank's own, and which an evaluation changes too.
    """
    for prefix, module in model.named_modules():
        if isinstance(module, Quantizing):
            yield from module.quantized_state(prefix)
        for name, parameter in module.named_parameters(recurse=False):
            if isinstance(parameter, ReadOnly):
                yield from parameter.quantized_state(f"{prefix}.{name}".lstrip("."))


def used_quantized(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield name and tensor of the quantized weights that the last forward multiplied by.

    A name is such as `up.weight.rowwise.data`. Both operands are included, since the backward of
    that forward reads the columnwise one. Before the first forward there are none, and a layer in
    bf16 has none.
    """
    for prefix, module in model.named_modules():
        if isinstance(module, Quantizing):
            yield from module.used_quantized(prefix)


def paths(model: nn.Module) -> set[str]:
    """Return which of the code paths `fused`, `grouped`, `quantized` the modules have taken."""
    modules = (module for module in model.modules() if isinstance(module, Quantizing))
    return {path for module in modules for path in getattr(module, "taken", ())}
