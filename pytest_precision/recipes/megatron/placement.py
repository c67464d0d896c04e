"""Find which parts of a model this rank has, and which of the microbatches it computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import chain
from typing import Any
from zlib import crc32

import torch
import torch.distributed as dist
from torch import Tensor, nn

from pytest_precision.errors import expected_but_got
from pytest_precision.layouts.transformer_engine.te_masters import store_master
from pytest_precision.recipes.megatron.flat_shards import pieces_by_name
from pytest_precision.recorders.scripts.located import PieceFields
from pytest_precision.workloads.base import Workload

WEIGHT_DEVIATION = 0.02


class PieceName(str):
    """A model tensor's name, with the range of its elements that a parameter or shard holds."""

    piece: PieceFields


def split_pieces(pieces: Sequence[PieceFields], tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Split a tensor that holds several weights, or ranges of them, into named tensors.

    Args:
        pieces: all that is in the flattened tensor, none of it padding.
        tensor: one element for each of the pieces' elements.
    """
    sizes = [stop - start for _, _, start, stop in pieces]
    for fields, part in zip(pieces, torch.split(tensor.reshape(-1), sizes), strict=True):
        logical, shape, *_ = fields
        if part.numel() == torch.Size(shape).numel():
            yield str(logical), part.reshape(tuple(shape))
        else:
            name = PieceName(logical)
            name.piece = fields
            yield name, part


def is_split(pieces: Sequence[PieceFields]) -> bool:
    """Return whether this rank holds only a part of one of the weights in a parameter."""
    return any(stop - start != torch.Size(shape).numel() for _, shape, start, stop in pieces)


def data_parallel() -> tuple[int, int]:
    """Return this rank's number and the size of the data-parallel group.

    Raises:
        ValueError: ranks share layers, which takes Megatron-core's own schedules, or sequences,
            which the workload would have to divide.
    """
    state = import_module("megatron.core.parallel_state")
    for parallelism, shared in (("pipeline_model", "layers"), ("context", "sequences")):
        size = getattr(state, f"get_{parallelism}_parallel_world_size")()
        if size > 1:
            raise ValueError(
                expected_but_got(
                    f"ranks that do not divide {shared} among them",
                    f"{parallelism}_parallel_size={size}",
                    "leave it out of recipe.initialize, or record a script that trains like this",
                )
            )
    return state.get_data_parallel_rank(), state.get_data_parallel_world_size()


def counts_in_norm(parameter: Any, *, sharded: bool) -> bool:
    """Return whether this rank counts a gradient in the norm, so that no gradient counts twice.

    Args:
        parameter: of the model.
        sharded: whether each data-parallel rank has another part of the reduced gradient.
    """
    state = import_module("megatron.core.parallel_state")
    of_experts = not getattr(parameter, "allreduce", True)
    if sharded:
        alike = state.get_inter_distributed_optimizer_instance_group(check_initialized=False)
    elif of_experts:
        alike = state.get_expert_data_parallel_group()
    else:
        alike = state.get_data_parallel_group(with_context_parallel=True)
    if alike is not None and dist.get_rank(alike) > 0:
        return False
    split = getattr(parameter, "tensor_model_parallel", False)
    return split or of_experts or state.get_tensor_model_parallel_rank() == 0


def together(optimizers: Sequence[Any], workload: Workload) -> Any:
    """Return the one optimizer of a model, or an object that presents several as one.

    Raises:
        ValueError: a workload has a scheduler, which torch makes for one optimizer alone.
    """
    if len(optimizers) == 1:
        return optimizers[0]
    if workload.scheduler(optimizers[0]) is not None:
        raise ValueError(
            expected_but_got(
                "a constant learning rate where Megatron-core gives experts their own optimizer",
                f"a scheduler of {type(workload).__name__}",
                "leave the scheduler or expert_model_parallel_size out",
            )
        )
    return Chained(optimizers)


class Chained:
    """The optimizers of dense weights and of experts, presented as one."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """List the parameter groups of all optimizers."""
        return [*chain.from_iterable(optimizer.param_groups for optimizer in self.optimizers)]

    def updater_of(self, parameter: Tensor) -> Any:
        """Return which of the optimizers updates a parameter."""
        groups = (
            (optimizer, group) for optimizer in self.optimizers for group in optimizer.param_groups
        )
        return next(
            optimizer for optimizer, group in groups if any(parameter is p for p in group["params"])
        )

    def zero_grad(self) -> None:
        """Clear the gradients of all optimizers."""
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    @property
    def state(self) -> dict[Tensor, Any]:
        """Return the states of all optimizers in one dict, by parameter."""
        return {
            key: state for optimizer in self.optimizers for key, state in optimizer.state.items()
        }

    @property
    def use_decoupled_grad(self) -> bool:
        """Return whether an optimizer reads gradients from `decoupled_grad`, not from `grad`."""
        return any(getattr(optimizer, "use_decoupled_grad", False) for optimizer in self.optimizers)

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Any:
        """Register a hook that runs before the first optimizer's step."""
        return self.optimizers[0].register_step_pre_hook(hook)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> Any:
        """Register a hook that runs after the last optimizer's step."""
        return self.optimizers[-1].register_step_post_hook(hook)


@torch.no_grad()
def weights_by_name(model: nn.Module) -> None:
    """Set each matrix of a model to random values that are seeded by its name.

    Megatron-core draws weights on the ranks that hold them, so those of a split layer are others
    than those of a whole one.

    Args:
        model: as Megatron-core has built it; its matrices are changed in place.
    """
    pieces = pieces_by_name(model)
    drawn_tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        if len(pieces[name][0][1]) > 1:
            slices = [
                _drawn_tensor(drawn_tensors, str(of), shape)[i:j]
                for of, shape, i, j in pieces[name]
            ]
            values = torch.cat(slices).to(parameter.dtype).reshape(parameter.shape)
            store_master(parameter, values)
            if hasattr(parameter, "get_high_precision_init_val"):  # which masters are made of
                parameter._high_precision_init_val = values.cpu()  # type: ignore[attr-defined]


def _drawn_tensor(drawn_tensors: dict[str, Tensor], name: str, shape: Sequence[int]) -> Tensor:
    """Return the random values, flat, of a whole matrix of the model, seeded by its name."""
    if name not in drawn_tensors:
        generator = torch.Generator().manual_seed(crc32(name.encode()))
        values = torch.randn(tuple(shape), generator=generator) * WEIGHT_DEVIATION
        drawn_tensors[name] = values.reshape(-1)
    return drawn_tensors[name]
