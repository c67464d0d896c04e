"""Find state of modules and optimizers in Python attributes, outside their tensors."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.engine.observation import Observation, whole
from pytest_precision.engine.values import as_tensor, leaves

OWN = frozenset(vars(nn.Module()))
"""Attributes that every module has: its tensors, its modules, its mode and its hooks."""

HOOKS = tuple(name for name in sorted(OWN) if name.endswith("_hooks"))
"""Those of them that hold functions which a call or a backward runs."""

OPTIMIZER_ELSEWHERE = frozenset({"param_groups", "state", "defaults"})
"""Attributes of an optimizer that are observed as other kinds, or only read when it is made."""

SHARDING = "torch.distributed."
"""Beginning of the modules of Python in which `fully_shard` makes classes."""

WHOLE = "the model"
"""What a root is called, which has no name."""

OPAQUE = (b"\x80", b"PK")
"""How bytes begin that pickle or `torch.save` has made: equal objects may have unequal ones."""

Leaves = Iterator[tuple[str, Any]]


def own_class(module: nn.Module) -> type:
    """Return a module's original class, not the subclass that `fully_shard` (FSDP2) substitutes."""
    bases = (base for base in type(module).__mro__ if not base.__module__.startswith(SHARDING))
    return next(bases)


def of_torch(module: nn.Module) -> bool:
    """Return whether a module's class is defined in torch, not by the user or another package."""
    return own_class(module).__module__.partition(".")[0] == "torch"


def attributes_of_modules(modules: Iterable[tuple[str, nn.Module]]) -> Leaves:
    """Yield the attributes of modules of user-defined classes.

    What torch's own modules keep is shown as `flag`. A wrapper does its own bookkeeping, by which
    nothing is computed.

    Args:
        modules: with their names; a wrapper has the name of the module in it.
    """
    visited_ids: set[int] = set()
    for name, module in dict(modules).items():
        if not of_torch(module):
            fields = {key: value for key, value in vars(module).items() if key not in OWN}
            yield from _named_leaves(fields, name or WHOLE, visited_ids)


def hooks_of_modules(modules: Iterable[tuple[str, nn.Module]]) -> Leaves:
    """Yield how many hooks of each sort each module has; see `attributes_of_modules`."""
    for name, module in dict(modules).items():
        for key in HOOKS:
            hooks = vars(module).get(key)
            if isinstance(hooks, Mapping):
                hook_kind = key.strip("_").replace("_", " ")
                yield f"number of {hook_kind} of {name or WHOLE}", len(hooks)


def numbers_of(holder: object) -> Leaves:
    """Yield (name, value) for an object's attributes that are numbers or tensors."""
    for key, value in vars(holder).items():
        if isinstance(value, (bool, int, float, Tensor)):
            yield f"{key.strip('_')} of {type(holder).__name__}", value


def optimizers_in(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """Yield (suffix, optimizer) for each torch optimizer in a container that chains several.

    The suffix is empty for the first one, and a number from the second one on. An optimizer that is
    no container is yielded alone.
    """
    parts = [] if isinstance(optimizer, Optimizer) else getattr(optimizer, "optimizers", [])
    chained = parts and all(isinstance(part, Optimizer) for part in parts)
    for number, part in enumerate(parts if chained else [optimizer], 1):
        yield f" {number}" * (number > 1), part


def attributes_of_optimizer(optimizer: Optimizer, number: str = "") -> Leaves:
    """Yield an optimizer's public attributes besides its state and groups, such as a step count.

    Args:
        optimizer: the optimizer to read.
        number: ends its name, where an engine's is made of several.
    """
    public = {k: v for k, v in vars(optimizer).items() if not k.startswith("_")}
    fields = {key: value for key, value in public.items() if key not in OPTIMIZER_ELSEWHERE}
    yield from _named_leaves(fields, type(optimizer).__name__ + number, set())


def leaf_observation(kind: str, name: str, leaf: Any) -> Observation:
    """Convert a number, text or tensor to an observation of an unsharded tensor."""
    tensor = as_tensor(leaf)
    assert tensor is not None
    return whole(kind, name, tensor)


def _named_leaves(attributes: Mapping[str, Any], name: str, visited_ids: set[int]) -> Leaves:
    for key, value in attributes.items():
        yield from ((f"{key}{path} of {name}", leaf) for path, leaf in leaves(value, visited_ids))


def saves_more(module: nn.Module) -> bool:
    """Return whether a module's class overrides `get_extra_state` to save more than tensors."""
    return type(module).get_extra_state is not nn.Module.get_extra_state


def extra_state(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[Observation]:
    """Yield the tensors and numbers that modules return from `get_extra_state`.

    What a module has pickled is an `attribute`, which an evaluation may change, as it records
    amaxes. It is shown as the objects in the bytes, since equal ones may have unequal bytes.
    """
    for name, module in modules:
        if saves_more(module):
            of = name or WHOLE
            for path, leaf in leaves(module.get_extra_state()):
                tensor = as_tensor(leaf)
                assert tensor is not None
                begins = (
                    _bytes(tensor[:2]) if tensor.dim() == 1 and tensor.element_size() == 1 else b""
                )
                if not begins.startswith(OPAQUE):
                    yield whole("extra_state", f"extra state{path} of {of}", tensor, local=True)
                    continue
                unpickled = _unpickled(tensor)
                parts = [("", tensor)] if unpickled is None else leaves(unpickled)
                for inner, part in parts:
                    yield leaf_observation("attribute", f"extra state{path}{inner} of {of}", part)


def _bytes(tensor: Tensor) -> bytes:
    return bytes(tensor.view(torch.uint8).tolist())


def _unpickled(tensor: Tensor) -> Any:
    """Unpickle bytes; return None if that fails."""
    try:
        return pickle.loads(_bytes(tensor))
    except Exception:  # whatever a class of the user's own raises
        return None


def state_by_name(optimizer: Optimizer, number: str = "") -> Iterator[Observation]:
    """Yield the entries of an optimizer's state whose key is a text instead of a parameter.

    Args:
        optimizer: the optimizer to read.
        number: ends its name, where an engine's is made of several.
    """
    state: dict[Any, Any] = optimizer.state  # by parameter, says torch
    for key, value in state.items():
        if isinstance(key, str):
            for path, leaf in leaves(value):
                yield leaf_observation("extra_state", f"{key}{path} of the optimizer{number}", leaf)
