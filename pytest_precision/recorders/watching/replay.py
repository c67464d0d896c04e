"""Run forward and backward once more from the state before them, and compare the bits.

The loop's own code cannot be run twice, so it is the model's calls that are: with the inputs,
generators, buffers, autocast and gradients that they had, and backward from the gradients that the
loss has given to their outputs. What computes the loss outside of the model runs once.

A weight's gradient is digested where autograd brings it, before DDP reduces it, so that a rank that
differs is the one that computes something else. FSDP2 brings it to tensors of its own: of those it
is what the backward leaves, which is of all ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle, unserializable_hook

from pytest_precision._torch.dispatch import tree_leaves, tree_map
from pytest_precision.engine.groups import updated_tensors
from pytest_precision.ranks.state.accelerator import generator_states, set_generator_states
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.torch_hooks import LoopEvents
from pytest_precision.recorders.watching.replicas import Digests
from pytest_precision.recorders.watching.root_calls import RootCall, RootListener


class RecordedCall:
    """A call of a model, with all that a second one needs to compute the same.

    Args:
        call: which is about to begin.
    """

    def __init__(self, call: RootCall) -> None:
        self._call = call
        self._generators = generator_states()
        self._buffers = [(buffer, buffer.clone()) for buffer in call.root.buffers()]
        parameter = next(call.root.parameters(), None)
        self._device = "cpu" if parameter is None else parameter.device.type
        self._autocast = partial(
            torch.autocast,
            self._device,
            dtype=torch.get_autocast_dtype(self._device),
            enabled=torch.is_autocast_enabled(self._device),
            cache_enabled=torch.is_autocast_cache_enabled(),
        )
        self.gradients: dict[int, Tensor] = {}
        self.digests: list[str] = []

    @property
    def root(self) -> nn.Module:
        """Return the model."""
        return self._call.root

    def end(self, output: Any) -> None:
        """Digest what the call has returned, and remember the gradients that reach it."""
        outputs = _tensors(output)
        self.digests = _digests_of(outputs)
        for place, tensor in enumerate(outputs):
            if tensor.requires_grad:
                keep: Any = partial(self.gradients.__setitem__, place)
                tensor.register_hook(keep)  # type: ignore[no-untyped-call]

    def again(self) -> list[Tensor]:
        """Call the model once more; return the tensors in its output."""
        set_generator_states(self._generators)
        _restore(self._buffers)
        with torch.enable_grad(), self._autocast():
            args, kwargs = tree_map(_detached, (self._call.args, self._call.kwargs))
            return _tensors(self.root(*args, **kwargs))


class LocalGradients:
    """Digests the gradients that a backward brings to weights."""

    def __init__(self) -> None:
        self._handles: dict[Tensor, RemovableHandle] = {}
        self._brought: dict[Tensor, list[str]] = {}

    def begin(self, parameters: Iterable[Tensor]) -> None:
        """Digest what is brought to these from here on."""
        self._brought = {}
        for parameter in parameters:
            if parameter not in self._handles:
                hook: Any = partial(self._bring, parameter)
                unserializable_hook(hook)  # type: ignore[no-untyped-call] # else a save warns
                handle = parameter.register_hook(hook)  # type: ignore[no-untyped-call]
                self._handles[parameter] = handle

    def of(self, parameters: Iterable[Tensor]) -> list[list[str]]:
        """Return the digests of what was brought; of what is left where nothing was."""
        return [
            self._brought.get(parameter) or _digests_of([parameter.grad])
            for parameter in parameters
        ]

    def close(self) -> None:
        """Leave the weights as they were."""
        for handle in self._handles.values():
            handle.remove()

    def _bring(self, parameter: Tensor, gradient: Tensor) -> None:
        self._brought.setdefault(parameter, []).extend(_digests_of([gradient]))


class Replay(LoopEvents, RootListener):
    """Runs forward and backward of a model once more after each backward.

    Nothing is repeated before an optimizer is known, which a loop shows in its first step.

    Args:
        reader: knows the loop's optimizers.
        differs: is called with kind and name of the first tensor that has other bits.
    """

    def __init__(self, reader: LoopReader, differs: Callable[[str, str], object]) -> None:
        self._reader = reader
        self._differs = differs
        self._calls: list[RecordedCall] = []
        self._before: dict[Tensor, Tensor | None] = {}
        self._gradients = LocalGradients()
        self._beside: set[Tensor] | None = None
        self._running = False

    def begins(self, call: RootCall) -> None:
        """Remember the state with which a model is called."""
        if not self._running and self._reader.optimizers:
            self._calls.append(RecordedCall(call))

    def ended(self, call: RootCall, output: Any) -> None:
        """Remember what a model has returned."""
        if not self._running and self._calls:
            self._calls[-1].end(output)

    def backward(self, loss: Tensor) -> Tensor:
        """Remember the gradients to which a backward adds."""
        if self._calls:
            parameters = self._parameters()
            self._before = {each: _cloned(each.grad) for each in parameters}
            self._gradients.begin(parameters)
        return loss

    def ran_backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        """Run the calls once more whose outputs have got gradients, and compare."""
        calls = [call for call in self._calls if call.gradients]
        self._calls = [call for call in self._calls if not call.gradients]
        if not calls:
            return
        expected = self._gradients.of(self._before)
        gradients = {parameter: parameter.grad for parameter in self._before}
        generators = generator_states()
        buffers = [(buffer, buffer.clone()) for call in calls for buffer in call.root.buffers()]
        self._running = True
        try:
            differing = self._first_that_differs(calls, expected)
        finally:
            self._running = False
        set_generator_states(generators)
        _restore(buffers)
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        if differing is not None:
            self._differs(*differing)

    def update(self, *_: Any, **__: Any) -> None:
        """Forget calls that no backward has reached, before weights move."""
        self._calls.clear()

    def close(self) -> None:
        """Leave the weights as they were."""
        self._gradients.close()

    def _first_that_differs(
        self, calls: list[RecordedCall], expected: list[list[str]]
    ) -> tuple[str, str] | None:
        """Return kind and name of the first tensor that is another one when calls run again."""
        outputs, gradients = self._run(calls)
        for call, digests in zip(calls, outputs, strict=True):
            if digests != call.digests:
                return "output", type(call.root).__name__
        differing = self._differing(expected, gradients)
        if self._beside is None:
            self._beside = set()
            if differing:  # a loss may reach a weight beside the model's output, in each step
                again = self._differing(gradients, self._run(calls)[1])
                self._beside = {parameter for parameter in differing if parameter not in again}
                self._say_beside()
        first = next((each for each in differing if each not in self._beside), None)
        return None if first is None else ("grad", self._name(first))

    def _run(self, calls: list[RecordedCall]) -> tuple[list[list[str]], list[list[str]]]:
        """Run calls and their backward from the state before; return outputs and gradients."""
        for parameter, gradient in self._before.items():
            parameter.grad = _cloned(gradient)
        outputs = [call.again() for call in calls]
        digests = [_digests_of(tensors) for tensors in outputs]
        reached = [
            (of_call[place], gradient)
            for call, of_call in zip(calls, outputs, strict=True)
            for place, gradient in sorted(call.gradients.items())
        ]
        tensors, received = zip(*reached, strict=True)
        self._gradients.begin(self._before)
        torch.autograd.backward(tensors, received)
        return digests, self._gradients.of(self._before)

    def _differing(self, digests: list[list[str]], others: list[list[str]]) -> list[Tensor]:
        pairs = zip(self._before, digests, others, strict=True)
        return [parameter for parameter, before, after in pairs if before != after]

    def _parameters(self) -> list[Tensor]:
        """Return what the optimizers update, the same objects whatever wrappers do in a forward."""
        tensors = chain.from_iterable(map(updated_tensors, self._reader.optimizers))
        return [tensor for tensor in dict.fromkeys(tensors) if tensor.requires_grad]

    def _name(self, parameter: Tensor) -> str:
        return self._reader.names.of(parameter) or "a parameter"

    def _say_beside(self) -> None:
        if self._beside:
            names = ", ".join(map(self._name, self._beside))
            words = f"gradients of {names} do not come from the model's output alone: not replayed"
            print(f"pytest_precision: {words}", file=sys.stderr, flush=True)


def _cloned(gradient: Tensor | None) -> Tensor | None:
    return None if gradient is None else gradient.clone()


def _restore(buffers: Iterable[tuple[Tensor, Tensor]]) -> None:
    with torch.no_grad():
        for buffer, content in buffers:
            buffer.copy_(content)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _detached(leaf: Any) -> Any:
    """Return an input of a model without the graph that has computed it, which is gone."""
    if isinstance(leaf, Tensor) and leaf.requires_grad:
        return leaf.detach().requires_grad_()
    return leaf


def _digests_of(tensors: Iterable[Tensor | None]) -> list[str]:
    """Return the digest of what this rank has of each tensor; empty of none."""
    texts = []
    for tensor in tensors:
        digests = Digests()
        if tensor is not None:
            digests.add("", "", "", tensor)
        texts.append(" ".join(row.digest for row in digests.rows()))
    return texts
