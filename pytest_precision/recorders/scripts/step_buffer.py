"""Buffer the events of a loop's running train step, and copies of the tensors that it computes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.engine import groups
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.observable import full
from pytest_precision.engine.observation import Observation, whole
from pytest_precision.engine.training_state import rng
from pytest_precision.recorders.collector import collector_paused
from pytest_precision.recorders.scripts.located import PieceOfTensor
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.scripts.loop_trace import LoopTrace

KEPT_OF_START = ("numbers", "state", "weights", "flags", "rng", "loss_scale", "policies")
"""What is kept of the start of a run, in the order in which it is written."""

LOGGED = "logged norm"
"""What norms are buffered as, by which nothing is clipped."""


@dataclass
class RunningStep:
    """The events of a loop's current step: its backwards, clips and optimizer steps.

    Attributes:
        begun: whether anything of it was seen.
        backwards: how many it has made, each from a loss.
        norms: how many norms of gradients were seen by which they are clipped.
        logged: how many others were seen.
        shown: kind and name to how often the script has shown a tensor by them.
        clipped: whether gradients were clipped.
        clipped_late: whether that was after an update.
        given_up: whether the loop has left its update out, as after an overflow.
        running: optimizers whose step has begun and has not returned; one may run another one.
        met: those of them that are about to read gradients, which a closure has computed.
        updated: optimizers whose step has returned, in this order.
        evaluated: modules that were called without gradients after an update.
    """

    begun: bool = False
    backwards: int = 0
    norms: int = 0
    logged: int = 0
    shown: Counter[tuple[str, str]] = field(default_factory=Counter)
    clipped: bool = False
    clipped_late: bool = False
    given_up: bool = False
    running: list[Optimizer] = field(default_factory=list)
    met: list[Optimizer] = field(default_factory=list)
    updated: list[Optimizer] = field(default_factory=list)
    evaluated: list[nn.Module] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Return whether the step's update was made or skipped."""
        return bool(self.updated and not self.running) or self.given_up

    @property
    def phase(self) -> str:
        """Return the phase that a tensor given to `record.see` now belongs to."""
        if self.updated:
            return "optimizer_step"
        return "clip_grads" if self.clipped or self.running else "forward_backward"

    def clip(self, limit: object) -> None:
        """Record that gradients are clipped, and whether that is after the optimizer's step.

        With an infinite limit, a loop only looks at the norm.
        """
        if is_infinite(limit):
            return
        self.clipped = True
        self.clipped_late = bool(self.updated) and not self.running

    def start(self, optimizer: Optimizer) -> None:
        """Record that an optimizer's `step` begins within this train step."""
        self.running.append(optimizer)
        self.clipped_late = self.given_up = False

    def end(self, optimizer: Optimizer) -> None:
        """Record that an optimizer's `step` has returned within this train step."""
        self.running = [
            earlier_optimizer
            for earlier_optimizer in self.running
            if earlier_optimizer is not optimizer
        ]
        self.met = [
            earlier_optimizer
            for earlier_optimizer in self.met
            if earlier_optimizer is not optimizer
        ]
        self.updated.append(optimizer)

    def next(self) -> RunningStep:
        """Return a record for the next step, keeping optimizers whose `step` still runs."""
        return RunningStep(running=self.running, met=self.met)


class StepBuffer:
    """Copies losses, norms and gradients of a running step, before the loop overwrites them.

    Args:
        reader: what can be seen of the loop.
        trace: of the loop.
        done: number of train steps that are over before the first one.

    Attributes:
        reader: as given.
        now: what the loop has done in the running step.
        seen: kinds that were seen at all.
        shown: kind and name of what the script has shown of its own.
        unread: type of a module to the reason why what it reads was not seen in some of its calls.
        fresh: whether no step of this run is over.
    """

    def __init__(self, reader: LoopReader, trace: LoopTrace, done: int) -> None:
        self.reader = reader
        self._trace = trace
        self.now = RunningStep()
        self.seen: set[str] = set()
        self.shown: dict[str, None] = {}
        self.unread: dict[str, str] = {}
        self.fresh = True
        reader.step = done + 1
        self._start = trace.capture(0)
        self._step = trace.capture(reader.step)

    def cannot_read(self, module: nn.Module, why: str) -> None:
        """Record why the weights that a module reads could not be observed."""
        self.unread.setdefault(type(module).__name__, why)

    def read_anew(self, root: nn.Module) -> None:
        """Drop the weights buffered in a model's earlier forward, since it runs again."""
        for _, module in self.reader.names.modules(root):
            for name, _ in self.reader.names.own(module):
                self._step.drop("used_param", name)

    def begin(self) -> None:
        """Buffer copies of the initial weights and random states, if this is the first step."""
        if self.fresh:
            self._trace.open(self.reader)
            self._start.keep("rng", "", rng())
            for name, observations in self.reader.weights_of_models():
                self._start.keep("weights", name, observations)

    def begin_anew(self) -> None:
        """Replace the buffered initial state by the present one; the first step starts now."""
        self._start = self._trace.capture(0)
        self.begin()

    def start(self, optimizer: Optimizer) -> None:
        """Buffer an optimizer's initial state before its first `step`, which runs a closure.

        Where no model is known yet, nothing has a name, and `meet` keeps it after the closure.
        """
        if self.fresh and self.reader.names_all_of(optimizer):
            self.begin()
            self.reader.take_in(optimizer)
            self._keep_start(optimizer, 0)

    def started(self) -> Iterator[Observation]:
        """Yield the buffered initial state of the run: weights, optimizer state and options."""
        return chain.from_iterable(map(self._start.kept, KEPT_OF_START))

    def end(self, done: int) -> None:
        """Drop the tensors buffered in a finished step; `done` counts the train steps so far."""
        self.fresh = False
        self.now = self.now.next()
        self.reader.step = done + 1
        self._step = self._trace.capture(self.reader.step)

    def meet(self, optimizer: Optimizer, *, goes_on: bool) -> None:
        """Copy an optimizer's options before its step; before its first, its state as well.

        See `Updates.add` for `goes_on`.
        """
        self.settle(groups.updated_tensors(optimizer))
        self.reader.take_in(optimizer)
        update = self.reader.updates.add(optimizer, goes_on=goes_on)
        if self.fresh:
            self._keep_start(optimizer, update)
            self._start.keep("flags", "", self.reader.flags())
            self._start.keep("loss_scale", "", self.reader.loss_scale())
            self.reader.begin()
            policies = self.reader.present_policies()
            self._start.keep("policies", self._named(optimizer, update), policies)
        self._keep("numbers", [(self._named(optimizer, update), self.reader.numbers(optimizer))])

    def settle(self, trained: Iterable[Tensor]) -> None:
        """Rename buffered tensors to their final names, once the model is known."""
        if self.reader.names.settle(trained):
            self.reader.part.spell(self.reader.names.spellings())
            for capture in (self._start, self._step):
                capture.rename(self.reader.names.settled)

    def loss(self, loss: Tensor) -> None:
        """Buffer a copy of the loss of a microbatch."""
        name = f"microbatch{self.now.backwards}"
        self._keep("loss", [(name, [whole("loss", name, full(loss.detach()), local=True)])])
        self.now.backwards += 1

    def norm(self, norm: Tensor, limit: object) -> None:
        """Buffer a copy of a gradient norm that the loop has computed, to clip by it to a limit.

        With an infinite one, its name follows those of norms by which gradients are clipped, so
        that a side that also logs a norm has the same names for these.
        """
        logs = is_infinite(limit)
        self.now.logged += logs
        self.now.norms += not logs
        kind, number = (LOGGED, self.now.logged) if logs else ("grad_norm", self.now.norms)
        self._keep(kind, [(str(number), [whole("grad_norm", _total(number), full(norm.detach()))])])

    def _norms(self) -> Iterator[Observation]:
        """Yield the step's norms, and the limit of those by which nothing is clipped."""
        yield from self._step.kept("grad_norm")
        for number, observation in enumerate(self._step.kept(LOGGED), self.now.norms + 1):
            yield observation.of_name(_total(number))
            limit = torch.tensor(math.inf, dtype=torch.float64)
            yield whole("clip_limit", _total(number), limit)

    def gradients(self) -> None:
        """Buffer copies of all gradients before they are clipped."""
        self._keep("reduced_grad", self.reader.gradients())

    def read_by(self, optimizer: Optimizer) -> None:
        """Buffer copies of the gradients that an optimizer's step is about to read."""
        self.gradients()
        self._keep("final_grad", self.reader.read_by(optimizer))

    def accumulated(self, parameter: Tensor) -> None:
        """Buffer a copy of a parameter's gradient after a microbatch's backward."""
        name = self.reader.names.of(parameter) or ""
        self._keep("grad", self.reader.accumulated(name, parameter, self.now.backwards - 1))

    def used_by(self, modules: Sequence[nn.Module]) -> None:
        """Buffer copies of the weights that modules are about to read in their forward."""
        for module in modules:
            if not self.now.begun:  # the call is noted already
                continue
            try:
                self._keep("used_param", self.reader.used(module))
            except RuntimeError as error:  # no observer ends a run
                words = str(error).partition("\n")[0]
                self.cannot_read(module, f"its weights cannot be read: {words}")

    def given(
        self, kind: str, name: str, tensor: Tensor, of: PieceOfTensor | None, *, local: bool
    ) -> None:
        """Buffer a tensor that the script passes to `record.see`; number repeated names."""
        self.now.shown[kind, name] += 1
        times = self.now.shown[kind, name]
        name += f" #{times}" if times > 1 else ""
        self.seen.add(kind)
        self.shown[f"{kind} {name}"] = None
        if self._trace.writes(self.reader.step):
            observations = self.reader.given(kind, name, tensor, of, local=local)
            self._step.keep(f"see in {self.now.phase}", f"{kind} {name}", observations)

    def phases(self) -> Iterator[tuple[str, Iterator[Observation]]]:
        """Yield (phase, observations) of the tensors buffered while the step ran."""
        of_kind = self._step.kept
        shown = (
            chain(of_kind("used_param"), of_kind("loss"), of_kind("grad")),
            of_kind("reduced_grad"),
            chain(self._norms(), of_kind("final_grad"), of_kind("numbers")),
            (),
        )
        for phase, observations in zip(STEP_PHASES, shown, strict=True):
            yield phase, chain(observations, of_kind(f"see in {phase}"))

    def rates(self) -> Iterator[Observation]:
        """Yield the learning rates that the step's optimizers have read."""
        return (
            observation for observation in self._step.kept("numbers") if observation.kind == "lr"
        )

    def _keep_start(self, optimizer: Optimizer, update: int) -> None:
        name = self._named(optimizer, update)
        self._start.keep("numbers", name, self.reader.numbers(optimizer))
        self._start.keep("state", name, self.reader.kept_by(optimizer))

    def _named(self, optimizer: Optimizer, update: int) -> str:
        return f"{self.reader.optimizers.index(optimizer)}, update {update}"

    def _keep(self, kind: str, shown: Iterable[tuple[str, Iterable[Observation]]]) -> None:
        with collector_paused():
            for name, observations in shown:
                self.seen.add(kind)
                if self._trace.writes(self.reader.step):
                    self._step.keep(kind, name, observations)


def is_infinite(limit: object) -> bool:
    """Return whether the limit of a norm lets every norm pass."""
    return isinstance(limit, (float, Tensor)) and float(limit) == math.inf


def _total(number: int) -> str:
    """Return the name of a step's norm; the first one has no number."""
    return f"total{number}" if number > 1 else "total"
