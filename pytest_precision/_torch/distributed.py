"""Private names of torch on process groups, meshes, shards and wrappers for training on ranks."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    # The class of all stores has no public name; `torch.distributed.Store` is the same at run time.
    from torch._C._distributed_c10d import Store as Store
    from torch.distributed.tensor import DTensor


PLAIN_CLASSES = frozenset({Tensor, nn.Parameter})
"""Classes of tensors without behaviour of their own."""


def is_dtensor(value: object) -> TypeGuard[DTensor]:
    """Return whether a value is a DTensor.

    The class is not imported for this: importing it takes half as long as torch itself, and where
    nobody has imported it, nothing is one. A session that compares recordings needs none.
    """
    if type(value) in PLAIN_CLASSES:  # nearly all of them
        return False
    module = sys.modules.get("torch.distributed.tensor")
    kind = getattr(module, "DTensor", None)  # none while somebody imports the module
    return kind is not None and isinstance(value, kind)


def local_chunk(tensor: DTensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the offsets and sizes of this rank's shard in the whole tensor of a DTensor.

    `torch.distributed.checkpoint` computes them in this way; DTensor has no public method for it.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tuple(offsets), tuple(sizes)


def whole_checkpoint(folder: Path) -> dict[str, Any]:
    """Read all tensors of a `torch.distributed.checkpoint` folder, whole, into a dict.

    The public `load` needs tensors of the right shapes beforehand, and casts to their dtypes.
    """
    from torch.distributed.checkpoint import state_dict_loader

    state: dict[str, Any] = state_dict_loader._load_state_dict_from_keys(checkpoint_id=folder)
    return state


def leave_to_ddp(model: nn.Module, ignored: Sequence[str]) -> None:
    """Make DDP ignore the parameters and buffers named in `ignored`; call this before it wraps."""
    from torch.nn.parallel import DistributedDataParallel

    name = "_set_params_and_buffers_to_ignore_for_model"
    getattr(DistributedDataParallel, name)(model, ignored)


def process_groups() -> Any:
    """Return torch's private tables of this process's process groups."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._world


def default_store() -> Store:
    """Return the store by which the ranks of the default process group have met.

    torch hands it to backends alone. A store of ours would need an address that all ranks know.
    """
    from torch.distributed import distributed_c10d

    store: Store = distributed_c10d._get_default_store()
    return store


def group_timeout() -> timedelta:
    """Return how long collectives of the default process group wait for a rank.

    No public name gives it. A backend that does not say has torch's own.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    group: Any = dist.group.WORLD
    options = getattr(group._get_backend(group._device_types[0]), "options", None)
    timeout: timedelta = getattr(options, "_timeout", distributed_c10d.default_pg_timeout)
    return timeout


def share_gloo_device() -> None:
    """Make all gloo groups of a process share one device, and so one thread.

    Torch makes one for each group, with a thread that wakes up a hundred times a second: 60 idle
    groups, as many as Megatron-core opens, take a twentieth of a core. Call this before a fork: the
    first group makes the device. Without the variable, or with several interfaces, nothing changes;
    nor does it for a group that is to have more (`enable_reconfigure`, from torch 2.14).
    """
    from torch.distributed import distributed_c10d

    table: Any = distributed_c10d
    original = table.ProcessGroupGloo
    device = functools.cache(original.create_device)

    class OnSharedDevice(original):  # type: ignore[misc, valid-type]
        def __init__(
            self,
            store: Store,
            rank: int,
            size: int,
            timeout: timedelta = distributed_c10d.default_pg_timeout,
            **more: Any,
        ) -> None:
            interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
            if not interface or "," in interface or any(more.values()):
                super().__init__(store, rank, size, timeout=timeout, **more)
                return
            options = original._Options()
            options._devices = [device(interface=interface)]
            options._timeout = timeout
            super().__init__(store, rank, size, options)

    table.ProcessGroupGloo = OnSharedDevice


def forget_meshes() -> None:
    """Clear DTensor's caches of meshes, which keep process groups alive.

    A destroyed group would break a later, equal mesh that finds it in a cache. torch has no public
    call that empties all of these caches.
    """
    if "torch.distributed.tensor" not in sys.modules:
        return
    from torch.distributed.tensor import DTensor, _redistribute, debug

    for function in _cached_functions():
        function.cache_clear()
    # For all threads; the cache of this thread's own function sits in a separate object.
    DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding.cache.cache_clear()
    for module, name in (
        (debug, "_clear_fast_path_sharding_prop_cache"),
        (_redistribute, "clear_redistribute_planner_cache"),
    ):
        getattr(module, name, lambda: None)()  # torch 2.9 has neither of these caches


def _cached_functions() -> Iterator[Any]:
    """Yield all functions and methods of DTensor that have an `lru_cache`."""
    modules = [m for name, m in sys.modules.items() if name.startswith("torch.distributed.tensor")]
    for holder in chain(modules, _classes(modules)):
        for name in vars(holder):
            value = getattr(holder, name, None)
            if isinstance(value, functools._lru_cache_wrapper):
                yield value


def _classes(modules: Iterable[ModuleType]) -> Iterator[type]:
    for module in modules:
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == module.__name__:
                yield value


class FlatPiece(NamedTuple):
    """A contiguous piece of a parameter, and the FSDP1 flat tensor that contains it.

    Attributes:
        holder: the flat parameter, or the original one, whose memory is a part of it.
        offset: where the piece begins in the holder.
        owner: the module that has the parameter.
        name: of the parameter in it.
        shape: of the whole parameter.
        start, stop: which elements of the flattened parameter the piece holds.
    """

    holder: Tensor
    offset: int
    owner: nn.Module
    name: str
    shape: tuple[int, ...]
    start: int
    stop: int


def flat_pieces(module: nn.Module) -> Iterator[FlatPiece]:
    """Yield, in order, the pieces of parameters that lie in an FSDP1 module's flat parameter.

    Its state dicts, which are public, need a collective and have neither gradients nor the shard.
    """
    handle: Any = getattr(module, "_handle", None)
    if handle is None:  # all parameters are in modules that have one of their own
        return
    flat = handle.flat_param
    gathered = flat.size() != flat._sharded_size
    offset = 0
    for number, ((name, owner, _), shape, shard) in enumerate(
        zip(flat._param_infos, flat._shapes, flat._shard_param_infos, strict=True)
    ):
        begin, end = (
            (shard.intra_param_start_idx, shard.intra_param_end_idx + 1)
            if shard.in_shard
            else (0, 0)
        )
        if flat._params is not None:  # use_orig_params=True
            yield FlatPiece(flat._params[number], 0, owner, name, tuple(shape), begin, end)
        elif gathered:
            yield FlatPiece(flat, offset, owner, name, tuple(shape), 0, shape.numel())
            offset += shape.numel()
        elif shard.in_shard:
            where = shard.offset_in_shard
            yield FlatPiece(flat, where, owner, name, tuple(shape), begin, end)


def sharding_policy(module: nn.Module) -> tuple[str, Any] | None:
    """Return how a module is wrapped (`FSDP1`, `FSDP2`, `DDP`) and its mixed precision policy.

    That of FSDP1 and DDP is public and may be None; no public name gives that of `fully_shard`.
    """
    if not torch.distributed.is_available():
        return None
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    if isinstance(module, FullyShardedDataParallel):
        return "FSDP1", module.mixed_precision
    if isinstance(module, FSDPModule):
        return "FSDP2", module._get_fsdp_state()._mp_policy
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return "DDP", module.mixed_precision
    return None


def managed_by_ddp(module: nn.parallel.DistributedDataParallel) -> list[Tensor]:
    """Return the parameters that DDP reduces, and those that it was told to ignore.

    It lists them when it is made; a parameter that comes later is in no bucket.
    """
    ignored = module.parameters_to_ignore
    named = module.module.named_parameters()
    return [
        *module._module_parameters,
        *(parameter for name, parameter in named if name in ignored),
    ]


def stage_outputs(stage: Any) -> list[torch.dtype]:
    """Return the dtypes that a pipeline stage declares to send; empty if it declares none.

    torch 2.9 has a public method for it, which later releases have not.
    """
    if hasattr(stage, "_user_meta"):
        metas = stage._user_meta.outputs or stage._stage_meta.outputs
    else:
        metas = stage._outputs_meta
    return [meta.dtype for meta in metas or ()]


def collect_one_by_one() -> None:
    """Make this process run coalesced collectives one by one, because gloo confuses their dtypes.

    gloo gathers tensors that are coalesced in the dtype of the first: where a later one is wider,
    as bf16 after the bytes of NVFP4, both come out mixed up, without a word. Nothing is left to
    wait for when the context ends, since what reads a tensor may not know that it is gathered. The
    manager has no public name, and neither has the table in which collectives note themselves.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    noted = process_groups().pg_coalesce_state
    manager = distributed_c10d._CoalescingManager

    @contextmanager
    def one_by_one(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[Any]:
        joined = group or dist.group.WORLD
        noted[joined] = []
        try:
            yield manager()
        finally:
            collected = noted.pop(joined)
        for each in collected:
            tensors = (t for t in (each.dst_tensor, each.tensor) if t is not None)
            reduction = {} if each.redop is None else {"op": each.redop}
            each.op(*tensors, group=joined, **reduction)

    for holder in (dist, distributed_c10d):
        setattr(holder, "_coalescing_manager", one_by_one)  # noqa: B010
