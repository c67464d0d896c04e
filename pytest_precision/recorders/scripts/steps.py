"""Turn the events that torch's hooks and the script report into recorded train steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.errors import expected_but_got, named
from pytest_precision.recorders.probe import Probe, around_call
from pytest_precision.recorders.scripts.by_hand import ByHand
from pytest_precision.recorders.scripts.located import Locate, PieceOfTensor
from pytest_precision.recorders.scripts.loop_names import Models
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.scripts.loop_schedule import LoopSchedule
from pytest_precision.recorders.scripts.loop_trace import LoopTrace
from pytest_precision.recorders.scripts.model_hooks import ModelHooks, unseen
from pytest_precision.recorders.scripts.step_buffer import RunningStep, StepBuffer
from pytest_precision.recorders.scripts.step_ends import StepEnds
from pytest_precision.recorders.torch_hooks import LoopEvents
from pytest_precision.trace.moment import Moment

ON_DEMAND = "grad"
"""The kind that is seen only where it is asked for."""


class Steps(LoopEvents):
    """Turns the events of a loop that torch's hooks report into recorded train steps.

    Args:
        reader: what can be seen of the loop.
        trace: keeps and writes what was seen.
        schedule: what the loop is to make; it is ended after that.
        probes: what watches the loop besides.

    Attributes:
        reader, schedule: as given.
        optimizer: the one whose `step` runs, or has just run.
        listeners: what torch's hooks report to after this; probes add theirs.
        buffer: what the step shows that is running.
        ends: where it begins and ends.
        hooks: what is in modules and parameters until they are closed.
    """

    def __init__(
        self,
        reader: LoopReader,
        trace: LoopTrace,
        schedule: LoopSchedule,
        probes: Sequence[Probe[Steps]] = (),
    ) -> None:
        self.reader = reader
        self.schedule = schedule
        self.listeners: list[LoopEvents] = []
        self.buffer = StepBuffer(reader, trace, schedule.done)
        self.ends = StepEnds(self.buffer, trace, schedule, self._show)
        self.hooks = ModelHooks(self.buffer, self.forward, self.clip)
        self._probes = probes
        self._unhooked: WeakSet[nn.Module] = WeakSet()
        self._local_grads = False
        self._by_hand = ByHand(schedule.asked)
        for probe in probes:
            probe.begin(self)

    @property
    def step(self) -> int:
        """Return the number of the train step that runs."""
        return self.reader.step

    def around(self, call: str) -> AbstractContextManager[None]:
        """Return a context that tells all probes of a call."""
        return around_call(self._probes, self, call)

    def _show(self, moment: Moment) -> None:
        for probe in self._probes:
            probe.shown(self, moment)

    @property
    def _now(self) -> RunningStep:
        return self.buffer.now

    def tell(
        self,
        model: Models = None,
        *,
        see: Collection[str] = (),
        locate: Locate | None = None,
    ) -> None:
        """Register the models and options that a script passes as arguments of `record()`.

        Raises:
            TypeError: something is of another type.
            ValueError: nothing but `grad` is seen on demand.
            RuntimeError: the loop has begun.
        """
        if locate is not None and not callable(locate):
            raise TypeError(
                expected_but_got(
                    "a function from a tensor to the pieces in it",
                    named("locate", locate),
                    "write record(locate=function)",
                )
            )
        if not isinstance(see, Collection) or isinstance(see, str) or {*see} - {ON_DEMAND}:
            raise ValueError(expected_but_got(f"see={{{ON_DEMAND!r}}}", named("see", see)))
        if self._now.begun or not self.buffer.fresh:
            raise RuntimeError(
                expected_but_got(
                    "record() before the first forward of the loop",
                    "a call after it",
                    "move it up, to where the model and the optimizer have been made",
                )
            )
        for root in self.reader.names.add(model):
            self._watch(root)
        self.reader.locate = locate
        self._local_grads |= ON_DEMAND in see

    # --- events ---------------------------------------------------------------------------------

    def forward(self, module: nn.Module) -> None:
        """End the previous step if its update is done, and buffer the weights that are read.

        A module that holds nothing of what is trained, such as an average, ends none.
        """
        names = self.reader.names
        why = unseen()
        at_edge = self._now.updated or not self._now.begun or not names.knows(module)
        if why is None and at_edge and names.lent(module):
            why = "called with weights that are not its own"
        if why is not None:
            if names.meet(module):
                self._unhooked.add(module)  # a hook would read what its parts are lent
                self.hooks.watch_clip(module)
            self.buffer.cannot_read(module, why)
            return
        trains = torch.is_grad_enabled()
        begins = trains and names.begins(module)
        if trains or names.knows(module):
            self.ends.end_if_over()
            self.ends.edge.reach(module, trains=trains, begins=begins)
        if not trains:
            self.ends.evaluate(module)
            return
        new = names.meet(module)
        if not names.anything:  # what holds nothing may be called before the model
            return
        self._begin()
        if new:
            self._watch(module, called=module)
        elif begins and not self._now.backwards:
            self.buffer.read_anew(module)
        for root in [unhooked for unhooked in self._unhooked if module in unhooked.modules()]:
            if names.lent(root):
                continue
            self._unhooked.remove(root)
            self._watch(root, called=module)

    def compiled(self, module: nn.Module, *_: Any, **__: Any) -> None:
        """Install hooks on a module that has just been compiled."""
        self.hooks.watch_call(module)
        if self.reader.names.knows(module):
            self.hooks.watch_compiled(module)

    def backward(self, loss: Tensor) -> Tensor:
        """Buffer the loss of a microbatch; return the loss to backpropagate in its place.

        In a step that is to be skipped, this overflows on the last rank.

        Raises:
            RuntimeError: such a step does not end, or weights move though no optimizer steps.
            StopRecording: all steps are over.
        """
        self.ends.end_if_over()
        self.ends.go_on()
        self._begin()
        self.buffer.loss(loss)
        start = self.ends.overflowed(loss)
        if self.buffer.fresh and not self._now.met and not self._now.updated:
            self._by_hand.backward(loss, self._now.backwards)
        return start

    def clip(self, norm: Tensor | None, limit: object = None) -> None:
        """Buffer the gradients that are about to be clipped, and their norm if it is known."""
        if self.hooks.clips:
            return
        self._begin()
        self.buffer.gradients()
        self._now.clip(limit)
        if norm is None:
            return
        self.buffer.norm(norm, limit)
        # A loop that looks at the norm may go on to the next batch without an update.
        overflowed = not bool(torch.isfinite(norm).all())
        self._now.given_up = self.schedule.operation == "skip" and overflowed

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Buffer the options and gradients that an optimizer's step is about to read.

        Raises:
            StopRecording: all steps are over.
        """
        again = optimizer in self._now.updated
        goes_on = again and not closure and self.reader.updates.lacks(optimizer)
        if closure or (again and not goes_on):
            self.ends.end_if_over()
        if closure:
            self.ends.edge.begin_in_step()
        self.ends.go_on()
        self._now.start(optimizer)
        if closure:
            self.buffer.start(optimizer)
        else:
            self._meet(optimizer, goes_on=goes_on)
            self.buffer.read_by(optimizer)

    def computed(self, optimizer: Optimizer) -> None:
        """Copy an optimizer's options, such as the rate, once its closure computed gradients."""
        if optimizer not in self._now.met:
            self._meet(optimizer, goes_on=False)

    def _meet(self, optimizer: Optimizer, *, goes_on: bool) -> None:
        self._begin()
        self._now.met.append(optimizer)
        self.buffer.meet(optimizer, goes_on=goes_on)
        self.optimizer = optimizer
        for probe in self._probes:
            probe.before(self, "optimizer_step")

    def updated(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Record that an optimizer's step has returned."""
        if closure:
            self.computed(optimizer)  # unless it has called its closure
            self.buffer.read_by(optimizer)
        self.optimizer = optimizer
        for probe in self._probes:
            probe.after(self, "optimizer_step")
        self._now.end(optimizer)

    def spawned(self, *_: Any, **__: Any) -> None:
        """Raise if a loop starts processes before it trains, as those are not recorded.

        Raises:
            RuntimeError: nothing was trained in this one.
        """
        if self._now.begun or self.schedule.done:
            return
        raise RuntimeError(
            expected_but_got(
                "a script that trains in its own process",
                "one that starts processes with torch.multiprocessing",
                "start it by torchrun instead, or record the function that trains",
            )
        )

    def scales(self, scaler: torch.amp.GradScaler, *_: Any, **__: Any) -> None:
        """Record which `GradScaler` is about to call an optimizer's step."""
        self.reader.scaler = scaler

    def scaled(
        self, scaler: torch.amp.GradScaler, optimizer: Optimizer, *_: Any, **__: Any
    ) -> None:
        """Count a step that a `GradScaler` skipped on overflow, as if the optimizer had made it."""
        if optimizer not in self._now.updated:
            self.update(optimizer, closure=False)
            self._now.end(optimizer)  # nothing was updated that a probe could measure

    def skipped(self) -> None:
        """End the step without an update, as the script asked by `record.skipped()`."""
        self._now.given_up = self._now.begun

    def see(
        self,
        kind: str,
        name: str,
        tensor: Tensor,
        *,
        of: PieceOfTensor | None = None,
        local: bool = False,
    ) -> None:
        """Buffer a tensor that the script passes to `record.see`; number repeated names.

        Raises:
            RuntimeError: no step has begun.
        """
        if not self._now.begun:
            raise RuntimeError(
                expected_but_got(
                    "record.see in a step, which begins with a forward,",
                    f"record.see({kind!r}, {name!r}, ...) before the first one",
                    "call it after the forward",
                )
            )
        self.buffer.given(kind, name, tensor, of, local=local)

    def _begin(self) -> None:
        if self.ends.begin():
            self._watch_gradients()

    def _watch(self, root: nn.Module, *, called: nn.Module | None = None) -> None:
        """Install hooks for the weights that a model's modules read, and for its clip method."""
        if called is not None:
            self._watch_gradients()
            self.buffer.begin()
        self.hooks.watch_clip(root)
        self.hooks.watch_reads(root, called=called)

    def _watch_gradients(self) -> None:
        """Install hooks for all gradients, if the script asked for `see={"grad"}`."""
        if self._local_grads:
            self.hooks.watch_gradients(parameter for _, parameter in self.reader.names.parameters())
