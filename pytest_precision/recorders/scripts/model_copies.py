"""Find weight averages and other copies of a model that no optimizer updates.

No hook of torch tells of an average that a loop makes: it is found where it lies in memory, by the
shapes of the model's weights, or as a module that is called and not trained.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from pytest_precision.engine.observation import Observation, whole
from pytest_precision.engine.readable import in_graph, stored, unreadable
from pytest_precision.engine.values import start_of
from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.recorders.scripts.loop_names import LoopNames

LAST_REFERENCES = 2
"""References to a container that nobody else holds: ours, and that of the call that counts."""

LEAST_TENSORS = 2
"""Tensors from which a list of them is taken for a copy of the weights by their shapes."""


@dataclass
class _Copy:
    """An object in memory that may be an average of the weights: a module, list or dict.

    Attributes:
        holder: a module, or a list or dict of tensors.
        start: what `start_of` said of each of its tensors when it was found.
        moved: whether they have changed, or it was called.
        name: empty until it is shown.
    """

    holder: Any
    start: Mapping[str, str]
    moved: bool = False
    name: str = ""

    def is_held(self) -> bool:
        """Return whether the object is a module, or is referenced outside of this recorder."""
        return isinstance(self.holder, nn.Module) or sys.getrefcount(self.holder) > LAST_REFERENCES


class Copies:
    """Finds copies of a model's weights, such as averages, and records those that change.

    What does not move is nobody's average: a model of an earlier run that is still in memory, the
    weights that a loop has put aside.

    Args:
        names: of the models.
    """

    def __init__(self, names: LoopNames) -> None:
        self._names = names
        self._found: list[_Copy] = []
        self._present: list[_Copy] = []
        self._called: dict[int, nn.Module] = {}

    def call(self, module: nn.Module) -> None:
        """Register a module that is called without gradients, such as an averaged model."""
        if id(module) not in self._called:
            self._called |= {id(part): part for part in module.modules()}
            ids = _ids(module)
            if ids and not ids & self._known():
                self._adopt(module).moved = True

    def look(self, alive: Iterable[Any], without: set[int]) -> None:
        """Find objects in memory whose tensors have the shapes of a model's weights.

        Args:
            alive: modules, and lists and dicts that may hold tensors.
            without: ids of tensors that belong to an optimizer.
        """
        excluded = self._known() | without
        shapes = self._weights()
        taken: set[int] = set()
        fitting = [
            holder
            for holder in alive
            if _shapes_of(holder) in shapes and not _ids(holder) & excluded
        ]
        for holder in sorted(fitting, key=_depth, reverse=True):
            ids = _ids(holder)
            if not ids & taken:
                self._adopt(holder)
            taken |= ids

    def observe(self) -> Iterator[Observation]:
        """Yield the tensors of each copy that has changed or was called as a module."""
        ids = self._known()
        self._found = [copy for copy in self._found if copy.is_held()]
        untrained = [copy for copy in self._found if not ids & _ids(copy.holder)]
        self._present = untrained
        present = [(copy, _starts(_weights_in(copy.holder))) for copy in untrained]
        # Where in memory they lie differs from run to run, what they hold does not.
        for copy, weights in sorted(present, key=lambda pair: repr(pair[1])):
            copy.moved |= any(copy.start.get(path) != weight for path, weight in weights.items())
            if copy.moved:
                copy.name = copy.name or self._new_name(copy.holder)
                named = self._named(copy)
                for path, tensor in _shown_tensors(copy.holder).items():
                    weight = next(stored("average", tensor.detach())).tensor
                    yield whole("average", named(path), weight)

    def starts(self) -> dict[str, str]:
        """Return the tensors of the copies that were last there, as they were when found, by name.

        Those that have not moved get their names here, after all others.
        """
        by_name: dict[str, str] = {}
        for copy in sorted(self._present, key=lambda copy: (not copy.name, repr(copy.start))):
            copy.name = copy.name or self._new_name(copy.holder)
            named = self._named(copy)
            by_name |= {named(path): start for path, start in copy.start.items()}
        return by_name

    def _named(self, copy: _Copy) -> Callable[[str], str]:
        """Return a function from the path of a copy's tensor to its name among observations."""
        likened = (
            self._weights().get(_shapes_of(copy.holder)) if type(copy.holder) is list else None
        )

        def named(path: str) -> str:
            part = likened[int(path)] if likened else path
            return TensorKey(copy.name, part).name("average")

        return named

    def _adopt(self, holder: Any) -> _Copy:
        for copy in self._found:
            if copy.holder is holder:
                return copy
        self._found.append(_Copy(holder, _starts(_shown_tensors(holder))))
        return self._found[-1]

    def _new_name(self, holder: Any) -> str:
        """Return a name for a copy, made of its class and, from the second one on, a number."""
        kind = _class_in_words(holder)
        same = sum(bool(copy.name) and _class_in_words(copy.holder) == kind for copy in self._found)
        return f"{kind} {same + 1}" if same else kind

    def _known(self) -> set[int]:
        return {id(parameter) for _, parameter in self._names.parameters()}

    def _weights(self) -> dict[tuple[torch.Size, ...], list[str]]:
        """Map the shapes of each model's tensors to names, for each choice of `_chosen_tensors`.

        What has no name, as a shard of FSDP1, is called by its place.
        """
        names_of_shapes: dict[tuple[torch.Size, ...], list[str]] = {}
        for root in self._names.roots:
            named_buffers = {id(buffer): name for name, buffer in self._names.buffers()}
            for some in _chosen_tensors(root):
                names = [
                    self._names.of(weight) or named_buffers.get(id(weight)) or str(place)
                    for place, weight in enumerate(some)
                ]
                names_of_shapes.setdefault(tuple(weight.shape for weight in some), names)
        return {
            shapes: names
            for shapes, names in names_of_shapes.items()
            if len(shapes) >= LEAST_TENSORS
        }


def _chosen_tensors(root: nn.Module) -> Iterator[Sequence[Tensor]]:
    """Yield the tensors of a model that a loop may average: weights, trained ones, or whole state.

    The state is in the order of `state_dict`, which is not called, since it runs hooks.
    """
    parameters = [*root.parameters()]
    yield parameters
    yield [parameter for parameter in parameters if parameter.requires_grad]
    state: list[Tensor] = []
    for module in root.modules():
        saved_tensors = [
            buffer
            for name, buffer in module.named_buffers(recurse=False, remove_duplicate=False)
            if name not in module._non_persistent_buffers_set
        ]
        direct = (
            tensor for _, tensor in module.named_parameters(recurse=False, remove_duplicate=False)
        )
        state += [*direct, *saved_tensors]
    yield state
    yield [tensor for tensor in state if tensor.is_floating_point()]


def _class_in_words(holder: Any) -> str:
    """Return a name for a copy of a model that does not depend on the dict that holds the copy."""
    if isinstance(holder, nn.Module):
        return type(holder).__name__
    return "dict of weights" if isinstance(holder, dict) else "list of weights"


def _depth(holder: Any) -> tuple[int, bool]:
    """Return a sort key that is larger for a module than for its parts."""
    parts = sum(1 for _ in holder.modules()) if isinstance(holder, nn.Module) else 0
    return parts, isinstance(holder, dict)


def _ids(holder: Any) -> set[int]:
    return {id(tensor) for tensor in _tensors(holder).values()}


def _shapes_of(holder: Any) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in _tensors(holder).values())


def _tensors(holder: Any) -> dict[str, Tensor]:
    """Return a module's parameters by name, or the tensors in a container of tensors only."""
    if isinstance(holder, nn.Module):
        return dict(holder.named_parameters())
    entries: Mapping[Any, Any] = holder if isinstance(holder, dict) else dict(enumerate(holder))
    first = next(iter(entries.values()), None)
    if not isinstance(first, Tensor) or not all(isinstance(e, Tensor) for e in entries.values()):
        return {}
    named = all(isinstance(key, (str, int)) for key in entries)
    return {str(key): entry for key, entry in entries.items()} if named else {}


def _elsewhere(tensor: Tensor) -> bool:
    """Return whether to ignore a copy's tensor as sharded, in an autograd graph or unreadable."""
    return in_graph(tensor) or isinstance(tensor, DTensor) or bool(unreadable(tensor))


def _weights_in(holder: Any) -> dict[str, Tensor]:
    return {path: tensor for path, tensor in _tensors(holder).items() if not _elsewhere(tensor)}


def _shown_tensors(holder: Any) -> dict[str, Tensor]:
    """Return the tensors of a copy that are recorded once it moves: its weights and buffers."""
    buffers = dict(holder.named_buffers()) if isinstance(holder, nn.Module) else {}
    return _weights_in(holder) | buffers


def _starts(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {path: start_of(tensor.detach()) for path, tensor in tensors.items()}
