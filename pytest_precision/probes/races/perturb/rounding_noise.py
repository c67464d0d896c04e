"""Round the results of operations at random, to measure how far rounding errors spread.

Another kernel, another order of a sum and another fusion change the last place of what an operation
returns. So the result of each operation that rounds is moved by up to one unit in the last place,
up, down or not at all, and the run shows how far such moves carry. Zeros stay zero.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from pytest_precision._torch.dispatch import after_operations, tree_leaves
from pytest_precision.engine.engine import Engine

ROUNDED = frozenset(
    (
        "mm",
        "bmm",
        "addmm",
        "baddbmm",
        "mv",
        "dot",
        "linear",
        "native_layer_norm",
        "native_layer_norm_backward",
        "_fused_rms_norm",
        "_fused_rms_norm_backward",
        "rsqrt",
        "_softmax",
        "_softmax_backward_data",
        "_log_softmax",
        "_log_softmax_backward_data",
        "gelu",
        "gelu_backward",
        "silu",
        "silu_backward",
        "mean",
        "sum",
        "add",
        "add_",
        "mul",
        "sqrt",
        "div",
        "lerp_",
        "addcmul_",
        "addcdiv_",
        "_foreach_add_",
        "_foreach_lerp_",
        "_foreach_addcmul_",
        "_foreach_addcdiv_",
        "_foreach_sqrt",
        "_fused_adamw_",
        "convolution",
        "convolution_backward",
        "native_batch_norm",
        "native_batch_norm_backward",
        "native_group_norm",
        "native_group_norm_backward",
        "mse_loss",
    )
)
"""Names of operations of torch whose results are rounded, other than by a cast."""

ROUNDED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class RandomRounding:
    """Moves the results of operations up or down by a rounding error, at random.

    Args:
        seed: of the moves.
        numbers: whether tensors without a dimension move too; those of an optimizer are counters.
    """

    def __init__(self, seed: int, *, numbers: bool) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._numbers = numbers

    def __call__(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Move a floating-point operation's result, or the tensor that it wrote to, at random.

        Args:
            name: of the operation.
            args: its arguments.
            result: what it returned.
        """
        if name in ROUNDED:
            for leaf in tree_leaves(args[0] if name.endswith("_") else result):
                if isinstance(leaf, Tensor) and leaf.dtype in ROUNDED_DTYPES:
                    self._move(leaf)

    def _move(self, tensor: Tensor) -> None:
        if hasattr(tensor, "to_local"):  # a shard, to which nothing whole can be added
            tensor = tensor.to_local()
        if not tensor.dim() and not self._numbers:
            return
        drawn = torch.randint(4, tensor.shape, generator=self._generator, dtype=torch.int8)
        move = (drawn == 1).to(tensor.dtype) - (drawn == 2).to(tensor.dtype)
        half = torch.finfo(tensor.dtype).eps / 2  # of the value: from half a unit to a whole one
        tensor.add_(tensor * (move * half).to(tensor.device))


def rounding_noise(
    number: int, engine: Engine, phase: str, step: int
) -> AbstractContextManager[object]:
    """Return a context in which the operations of one phase of a train step round at random.

    Ranks that compute gradients of different data have moves of their own; what all ranks compute
    alike, they move alike.

    Args:
        number: of the run, from 1.
        engine: that runs it.
        phase: that is run.
        step: the train step.
    """
    of_rank = phase == "forward_backward"
    rank = engine.data_parallel[0] + 1 if of_rank else 0
    seed = ((number * 10_007 + step) * 1_009 + rank) * 11 + len(phase)
    context: AbstractContextManager[object] = after_operations(
        RandomRounding(seed, numbers=of_rank)
    )
    return context
