"""Every use of a private name of torch: why it is needed, and what would replace it.

A release of torch may change any of these names without notice, so only this module uses them, each
in a function of ours. No name is looked up before it is needed: ranks must also start with a torch
that lacks one.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    # The class of all stores has no public name; `torch.distributed.Store` is the same at run time.
    from torch._C._distributed_c10d import Store as Store
    from torch.distributed.tensor import DTensor


SCHEDULER_RATES = "_last_lr"
"""What a scheduler keeps of the rates that it has set, for `get_last_lr`; it reads none of it."""


def tree_leaves(tree: Any) -> list[Any]:
    """List the leaves of nested containers. A public `torch.utils.pytree` would replace this."""
    from torch.utils import _pytree

    return _pytree.tree_leaves(tree)


def tree_map(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply `function` to the leaves of nested containers. See `tree_leaves`."""
    from torch.utils import _pytree

    return _pytree.tree_map(function, tree)


def compiled_call(module: nn.Module) -> Any:
    """Return what `module.compile()` has put in the place of its call; None without that.

    No hook of a module is called there, and no public name has it.
    """
    return module._compiled_call_impl


def set_compiled_call(module: nn.Module, call: Any) -> None:
    """Set what is called in the place of a module. See `compiled_call`."""
    module._compiled_call_impl = call


def after_operations(call: Callable[[str, tuple[Any, ...], Any], None]) -> Any:
    """Return a context in which `call` gets name, arguments and result of each operation.

    No public mode sees the operations of a backward.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Operations(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = func(*args, **(kwargs or {}))
            call(func.overloadpacket.__name__, args, result)
            return result

    return Operations()  # type: ignore[no-untyped-call]


def without_torch_function() -> Any:
    """Return the `__torch_function__` for a class that only overrides `__torch_dispatch__`.

    torch's own tensor subclasses use it; no public name does the same.
    """
    return torch._C._disabled_torch_function_impl


def tensor_of_class(cls: type[Tensor], values: Tensor) -> Any:
    """Make a tensor of a subclass that shares memory with `values`.

    `values.as_subclass(cls)` would call the subclass's own `__torch_dispatch__`.
    """
    return torch.Tensor._make_subclass(cls, values)


def tensor_without_memory(
    cls: type[Tensor], shape: torch.Size, dtype: torch.dtype, device: torch.device
) -> Any:
    """Make a tensor of a subclass that has shape, dtype and device but no storage, like DTensor."""
    return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device)


def moved_by_its_class(tensor: Tensor, device: torch.device) -> Any:
    """Return a copy that the dispatch of a tensor's own class makes on `device`.

    `Tensor.to` would not ask it where the device is, for torch, the one that the tensor is on.
    """
    move = type(tensor).__torch_dispatch__
    return move(torch.ops.aten._to_copy.default, (type(tensor),), (tensor,), {"device": device})


def written_arguments(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterator[object]:
    """Yield the arguments that an operator writes to, by its schema, which has no public name."""
    declared = func._schema.arguments
    given = {**dict(zip((a.name for a in declared), args, strict=False)), **kwargs}
    for argument in declared:
        alias = argument.alias_info
        if alias is not None and alias.is_write and argument.name in given:
            yield given[argument.name]


def returns_view(func: Any) -> bool:
    """Return whether an operator's schema says that a result shares memory with an argument."""
    kinds = (returned.alias_info for returned in func._schema.returns)
    return any(kind is not None and not kind.is_write for kind in kinds)


def on_cpu(tensor: Tensor) -> Tensor:
    """Return a tensor in the memory of the CPU: itself if it is there, whatever it says.

    Over the stand-in for Transformer Engine it says `cuda`, and `Tensor.cpu` copies it. The class
    that torch's derives from has no public name, and the stand-in does not patch it.
    """
    return torch._C.TensorBase.cpu(tensor)


def version(tensor: Tensor) -> int:
    """Return autograd's version counter of `tensor`, which every write to it increments."""
    return tensor._version


def local_chunk(tensor: DTensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the offsets and sizes of this rank's shard in the whole tensor.

    `torch.distributed.checkpoint` computes them in this way; DTensor has no public method for it.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return tuple(offsets), tuple(sizes)


def whole_checkpoint(folder: Path) -> dict[str, Any]:
    """Read a whole checkpoint; the public `load` needs tensors of the right shapes beforehand."""
    from torch.distributed.checkpoint import state_dict_loader

    state: dict[str, Any] = state_dict_loader._load_state_dict_from_keys(checkpoint_id=folder)
    return state


def put_parameter(module: nn.Module, name: str, tensor: Tensor) -> None:
    """Put a tensor that is not an `nn.Parameter` into a module, as `functional_call` does."""
    module._parameters[name] = tensor  # type: ignore[assignment]


def after_backward(function: Callable[[], None]) -> None:
    """Call `function` at the end of the backward that is running, as FSDP2 and DDP do."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def in_bad_fork() -> bool:
    """Return whether this process is a fork of one that had started CUDA, and so cannot use it.

    torch has no public name for it; the error of the first use of CUDA says the same.
    """
    return bool(torch.cuda._is_in_bad_fork())


def leave_to_ddp(model: nn.Module, ignored: Sequence[str]) -> None:
    """Exclude these parameters and buffers from DDP; call this before DDP wraps the model."""
    from torch.nn.parallel import DistributedDataParallel

    name = "_set_params_and_buffers_to_ignore_for_model"
    getattr(DistributedDataParallel, name)(model, ignored)


def global_hooks() -> Iterator[tuple[str, str, object]]:
    """Yield the hooks registered for all modules and optimizers as (owner, moment, hook).

    torch has public functions to register them, but none to list them.
    """
    from torch.nn.modules import module
    from torch.optim import optimizer

    for what, holder in (("modules", module), ("optimizers", optimizer)):
        for name, hooks in vars(holder).items():
            if name.startswith("_global_") and name.endswith("hooks") and isinstance(hooks, dict):
                for hook in hooks.values():
                    yield what, name.removeprefix("_global_"), hook


def call_first(module: nn.Module, handle: Any) -> None:
    """Let the forward pre-hook of a handle run before the others that a module has by now.

    `register_forward_pre_hook(prepend=True)` says so when a hook is registered, and not later.
    """
    hooks: Any = module._forward_pre_hooks
    hooks.move_to_end(handle.id, last=False)


def process_groups() -> Any:
    """Return torch's tables of this process's groups; no public function lists groups."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._world


def forget_meshes() -> None:
    """Empty the caches in which DTensor keeps meshes and thereby their process groups.

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
    """A piece of a parameter in a tensor of FSDP1.

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
    """Yield what a `FullyShardedDataParallel` keeps itself, in the order of its flat parameter.

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


def in_transform() -> bool:
    """Return whether `torch.func` transforms what runs: values of tensors are out of reach there.

    No public function says so.
    """
    return torch._C._functorch.peek_interpreter_stack() is not None


def function_that_scales() -> tuple[Any, str]:
    """Return where the function lies that scales gradients down, given their norm; see `place_of`.

    `clip_grad_norm_` finds it by its private name.
    """
    from torch.nn.utils import clip_grad

    return place_of(clip_grad, "_clip_grads_with_norm_")


def function_that_clamps() -> tuple[Any, str]:
    """Return where the function lies that clamps gradients; see `place_of`."""
    from torch.nn.utils import clip_grad

    return place_of(clip_grad, "clip_grad_value_")


def place_of(holder: Any, name: str) -> tuple[Any, str]:
    """Return an object and its attribute that hold a function, whoever has imported it by name.

    What is imported is a wrapper, such as `no_grad`, which has the function in a cell of its own;
    no public name leads there. A function without one lies where it is defined.
    """
    function = getattr(holder, name)
    wrapped = getattr(function, "__wrapped__", None)
    cells = (cell for cell in function.__closure__ or () if cell.cell_contents is wrapped)
    return next(((cell, "cell_contents") for cell in cells), (holder, name))


def sharding_policy(module: nn.Module) -> tuple[str, Any] | None:
    """Return `FSDP1`, `FSDP2` or `DDP`, and the policy of mixed precision, of a wrapped module.

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


def stage_outputs(stage: Any) -> list[torch.dtype]:
    """Return the dtypes that a pipeline stage was told to send; empty if it was not.

    torch 2.9 has a public method for it, which later releases have not.
    """
    if hasattr(stage, "_user_meta"):
        metas = stage._user_meta.outputs or stage._stage_meta.outputs
    else:
        metas = stage._outputs_meta
    return [meta.dtype for meta in metas or ()]


def without_torch_functions() -> Any:
    """Return a context in which no subclass's `__torch_function__` is called; none is public."""
    return torch._C.DisableTorchFunctionSubclass()


def without_functions_seen() -> Any:
    """Return a context in which neither modes nor subclasses see a function; none is public."""
    return torch._C.DisableTorchFunction()


def map_devices(mapped: Callable[[Any], Any]) -> None:
    """Map devices where torch reads them by private names, for as long as the process lives.

    These are the devices of tensor subclasses without storage, and of a `with torch.device(...)` or
    `torch.set_default_device`.
    """
    from torch.utils import _device

    make, enter = Tensor._make_wrapper_subclass, _device.DeviceContext.__init__

    def made(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = mapped(kwargs["device"])
        return make(cls, *args, **kwargs)

    def entered(self: Any, device: Any) -> None:
        enter(self, mapped(torch.device(device)))

    setattr(Tensor, "_make_wrapper_subclass", staticmethod(made))  # noqa: B010 (stubs lack it)
    setattr(_device.DeviceContext, "__init__", entered)  # noqa: B010


def start_cuda_at_once() -> None:
    """Have `torch.cuda` run now what it keeps for its start, which never comes without a GPU."""
    for holder in (torch.cuda, torch.cuda.random):
        for name, value in {
            "_lazy_init": lambda: None,
            "_lazy_call": lambda call, **_: call(),
        }.items():
            setattr(holder, name, value)


def collect_one_by_one() -> None:
    """Run what a `_coalescing_manager` collects one after another, for as long as a process lives.

    gloo gathers tensors that are coalesced in the dtype of the first: where a later one is wider,
    as bf16 after the bytes of NVFP4, both come out mixed up, without a word. Nothing is left to
    wait for when the context ends, since what reads a tensor may not know that it is gathered. The
    manager has no public name, and neither has the table in which collectives note themselves.
    """
    import torch.distributed as dist
    from torch.distributed import distributed_c10d

    noted, manager = process_groups().pg_coalesce_state, distributed_c10d._CoalescingManager

    @contextmanager
    def one_by_one(group: Any = None, device: Any = None, async_ops: bool = False) -> Iterator[Any]:
        own = group or dist.group.WORLD
        noted[own] = []
        try:
            yield manager()
        finally:
            collected = noted.pop(own)
        for each in collected:
            tensors = (t for t in (each.dst_tensor, each.tensor) if t is not None)
            reduction = {} if each.redop is None else {"op": each.redop}
            each.op(*tensors, group=own, **reduction)

    for holder in (dist, distributed_c10d):
        setattr(holder, "_coalescing_manager", one_by_one)  # noqa: B010


def around_operations(call: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> Any:
    """Return a context in which `call` makes each operation: it gets operator, arguments, keywords.

    Operations of tensor subclasses that have a dispatch of their own are left to it, and those that
    it makes are given to `call`. Compiled functions stay compiled.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    class Around(TorchDispatchMode):  # type: ignore[no-untyped-call]
        @classmethod
        def ignore_compile_internals(cls) -> bool:
            return True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if not all(map(is_plain, types)):
                return NotImplemented
            return call(func, args, kwargs or {})

    return Around()  # type: ignore[no-untyped-call]


def is_plain(kind: type[Tensor]) -> bool:
    """Return whether tensors of a class have memory of their own, and no dispatch of their own."""
    return (
        kind in (Tensor, nn.Parameter, nn.Buffer)
        or kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
    )


def operator_name(func: Any) -> str:
    """Return the name of an operator with its overload, as `aten.mul.Tensor`."""
    return str(func)


def draws_random_numbers(func: Any) -> bool:
    """Return whether an operator reads the state of a generator."""
    return torch.Tag.nondeterministic_seeded in func.tags


def writes(func: Any) -> tuple[tuple[int, str], ...]:
    """Return position and name of the arguments that an operator writes to, by its schema."""
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def storage_key(tensor: Tensor) -> int:
    """Return what tells the memory of a tensor from all other memory that is alive."""
    return int(tensor.untyped_storage()._cdata)


def weak_storage(tensor: Tensor) -> Any:
    """Return a reference that does not keep the memory of a tensor, but keeps its key taken."""
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def current_node() -> int | None:
    """Return the sequence number of the node whose backward runs; None outside of a backward."""
    node = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def next_node() -> int:
    """Return the sequence number that the next node of autograd will have."""
    return int(torch._C._autograd._get_sequence_nr())


def wait_for(func: Any, result: Any) -> None:
    """Wait for a collective that an operator has started, if it has."""
    if func.namespace == "c10d":
        from torch.distributed import Work

        for part in result if isinstance(result, tuple) else (result,):
            if isinstance(part, torch.ScriptObject) and str(part._type()).endswith(".Work"):
                Work.unbox(part).wait()
    elif func.namespace == "_c10d_functional":
        for part in tree_leaves(result):
            torch.ops._c10d_functional.wait_tensor(part)
