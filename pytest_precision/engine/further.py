"""Find optimizers, modules, schedulers and numbers besides the main ones in an engine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pytest_precision._torch.distributed import is_dtensor
from pytest_precision._torch.training import SCHEDULER_BOOKKEEPING, SCHEDULER_RATES
from pytest_precision.engine.attributes import Leaves
from pytest_precision.engine.groups import updated_tensors
from pytest_precision.engine.readable import stored, unreadable
from pytest_precision.engine.values import leaves
from pytest_precision.matrix.tensor_key import TensorKey

STALE_RATES = "stale rates"
"""Names whether the rates that a scheduler tells are not those of its optimizer's groups."""


def optimizers(
    attributes: Mapping[str, Any], first: Optimizer, parameter_ids: set[int]
) -> Iterator[Optimizer]:
    """Yield optimizers among an engine's attributes that update parameters the main one does not.

    Args:
        attributes: attributes of an engine.
        first: its optimizer.
        parameter_ids: ids of the parameters of the model.
    """
    taken = {id(p) for p in updated_tensors(first)}
    for value in attributes.values():
        for optimizer in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(optimizer, Optimizer) and optimizer is not first:
                ids = {id(p) for p in updated_tensors(optimizer)}
                if ids and ids <= parameter_ids - taken:
                    taken |= ids
                    yield optimizer


def further_modules(
    attributes: Mapping[str, Any], trained_ids: set[int]
) -> Iterator[tuple[str, nn.Module]]:
    """Yield (name, module) for an engine's attributes that share no parameter with its model.

    Args:
        attributes: attributes of an engine.
        trained_ids: ids of the parameters of the model and of what the optimizer updates.
    """
    for name, value in attributes.items():
        if isinstance(value, nn.Module):
            parameters = {id(parameter) for parameter in value.parameters()}
            if parameters and not parameters & trained_ids:
                yield name, value


def average(name: str, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) for a module that averages weights; sharded tensors are left out."""
    for tensors in (module.named_parameters(), module.named_buffers()):
        for path, tensor in tensors:
            if not is_dtensor(tensor) and not unreadable(tensor):
                yield (
                    TensorKey(name, path).name("average"),
                    next(stored("average", tensor.detach())).tensor,
                )


def policies(objects: Iterable[object]) -> Leaves:
    """Yield (name, value) for the attributes of each learning rate scheduler in `objects`."""
    numbers: dict[str, int] = {}
    for scheduler in objects:
        if isinstance(scheduler, LRScheduler):
            name = type(scheduler).__name__
            numbers[name] = numbers.get(name, 0) + 1
            name += f" {numbers[name]}" if numbers[name] > 1 else ""
            yield from ((f"{path} of {name}", leaf) for path, leaf in scheduler_leaves(scheduler))


def scheduler_leaves(scheduler: LRScheduler) -> Leaves:
    """Yield (path, value) for the attributes of a scheduler and of the schedulers it contains.

    The rates that it keeps to tell them are those of its optimizer's groups, whose order may be
    another one on each side. So it is shown whether they are stale.
    """
    attributes = vars(scheduler)
    if SCHEDULER_RATES in attributes:
        rates = [group["lr"] for group in scheduler.optimizer.param_groups]
        yield STALE_RATES, rates != attributes[SCHEDULER_RATES]
    for key, value in attributes.items():
        if key not in ("optimizer", SCHEDULER_RATES):
            inner = value if isinstance(value, (list, tuple)) else ()
            for place, part in enumerate(inner):
                if isinstance(part, LRScheduler):
                    for path, leaf in scheduler_leaves(part):
                        yield f"{key}.{place}.{path}", leaf
            yield from ((f"{key}{path}", leaf) for path, leaf in leaves(value))


def is_counted_anew(policy: str) -> bool:
    """Return whether a policy starts anew in a scheduler that is made at the step it goes on with.

    No rate follows from it, while the optimizer has the rates of the checkpoint.
    """
    path, _, _ = policy.partition(" of ")
    return path.rpartition(".")[2] in SCHEDULER_BOOKKEEPING | {STALE_RATES}


def plain_values(
    name: str, attributes: Mapping[str, Any], without: Iterable[str], packages: Collection[str]
) -> Leaves:
    """Yield (name, value) for the numbers and texts in an object's public attributes.

    Args:
        name: of the object.
        attributes: its attributes.
        without: names of some of them.
        packages: those whose objects are looked into; frameworks count a lot by which nothing is
            computed.
    """
    visited_ids: set[int] = set()
    for key, value in attributes.items():
        if not key.startswith("_") and key not in without:
            for path, leaf in leaves(value, visited_ids, packages):
                if isinstance(leaf, (bool, int, float, str)):
                    yield f"{key}{path} of {name}", leaf
