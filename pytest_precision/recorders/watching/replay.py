"""Run forward and backward once more from the state before them, and compare the bits.

The loop's own code cannot be run twice, so it is the model's calls that are: with the inputs,
generators, buffers, autocast and gradients that they had, and backward from the gradients that the
loss has given to their outputs. What computes the loss outside of the model runs once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision._torch.dispatch import tree_leaves, tree_map
from pytest_precision.engine.groups import updated_tensors
from pytest_precision.ranks.state.accelerator import generator_states, set_generator_states
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.torch_hooks import LoopEvents
from pytest_precision.recorders.watching.replicas import Digests
from pytest_precision.recorders.watching.root_calls import RootCall, RootListener

Gradients = dict[Tensor, Tensor | None]


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
        with torch.no_grad():
            for buffer, content in self._buffers:
                buffer.copy_(content)
        with torch.enable_grad(), self._autocast():
            args, kwargs = tree_map(_detached, (self._call.args, self._call.kwargs))
            return _tensors(self.root(*args, **kwargs))


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
        self._before: Gradients = {}
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
        self._before = (
            {}
            if not self._calls
            else {
                parameter: None if parameter.grad is None else parameter.grad.clone()
                for parameter in self._parameters()
            }
        )
        return loss

    def ran_backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        """Run the calls once more whose outputs have got gradients, and compare."""
        calls = [call for call in self._calls if call.gradients]
        self._calls = [call for call in self._calls if not call.gradients]
        if not calls:
            return
        after = {parameter: parameter.grad for parameter in self._parameters()}
        expected = _digests_of(after.values())
        generators = generator_states()
        buffers = [(b, b.clone()) for call in calls for b in call.root.buffers()]
        with self._replaying():
            differing = self._outputs_or_gradients(calls, after, expected)
        set_generator_states(generators)
        with torch.no_grad():
            for buffer, content in buffers:
                buffer.copy_(content)
        for parameter, gradient in after.items():
            parameter.grad = gradient
        if differing is not None:
            self._differs(*differing)

    def update(self, *_: Any, **__: Any) -> None:
        """Forget calls that no backward has reached, before weights move."""
        self._calls.clear()

    def _outputs_or_gradients(
        self, calls: list[RecordedCall], after: Gradients, expected: list[str]
    ) -> tuple[str, str] | None:
        """Return kind and name of the first tensor that is another one when calls run again."""
        outputs, gradients = self._run(calls)
        for call, digests in zip(calls, outputs, strict=True):
            if digests != call.digests:
                return "output", type(call.root).__name__
        differing = {
            parameter
            for parameter, before, again in zip(after, expected, gradients, strict=True)
            if before != again
        }
        if self._beside is None:
            self._beside = set()
            if differing:  # a loss may reach a weight beside the model's output, each time
                repeated = dict(zip(after, self._run(calls)[1], strict=True))
                pairs = dict(zip(after, gradients, strict=True))
                self._beside = {each for each in differing if pairs[each] == repeated[each]}
                self._say_beside()
        differing -= self._beside
        first = next((each for each in after if each in differing), None)
        return None if first is None else ("grad", self._name(first))

    def _run(self, calls: list[RecordedCall]) -> tuple[list[list[str]], list[str]]:
        """Run calls and their backward from the state before; return outputs and gradients."""
        for parameter, gradient in self._before.items():
            parameter.grad = None if gradient is None else gradient.clone()
        outputs = [call.again() for call in calls]
        digests = [_digests_of(tensors) for tensors in outputs]
        reached = [
            (of_call[place], gradient)
            for call, of_call in zip(calls, outputs, strict=True)
            for place, gradient in sorted(call.gradients.items())
        ]
        tensors, received = zip(*reached, strict=True)
        torch.autograd.backward(tensors, received)
        parameters = self._parameters()
        return digests, _digests_of([parameter.grad for parameter in parameters])

    def _parameters(self) -> list[Tensor]:
        """Return what the optimizers update, the same objects whatever wrappers do in a forward."""
        tensors = chain.from_iterable(map(updated_tensors, self._reader.optimizers))
        return [tensor for tensor in dict.fromkeys(tensors) if tensor.requires_grad]

    @contextmanager
    def _replaying(self) -> Iterator[None]:
        self._running = True
        try:
            yield
        finally:
            self._running = False

    def _name(self, parameter: Tensor) -> str:
        return self._reader.names.of(parameter) or "a parameter"

    def _say_beside(self) -> None:
        if self._beside:
            names = ", ".join(map(self._name, self._beside))
            words = f"gradients of {names} do not come from the model's output alone: not replayed"
            print(f"pytest_precision: {words}", file=sys.stderr, flush=True)


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
