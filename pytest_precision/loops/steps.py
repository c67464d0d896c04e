"""Steps: what a loop does, as it is told of it, divided into train steps and written down.

A step is what lies between two updates, and its end is seen at the start of the next one: a
scheduler, a second optimizer or a clip that comes too late belongs to the step before. So what is
gone by then is kept when it is there, and the whole step is written at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.observable import full
from pytest_precision.engine.observation import Observation, whole
from pytest_precision.errors import expected_but_got
from pytest_precision.loops.locate import Extent
from pytest_precision.loops.model_hooks import ModelHooks
from pytest_precision.loops.sight import Shown, Sight
from pytest_precision.loops.tape import Tape
from pytest_precision.trace.moment import END, INIT, Moment


class Enough(BaseException):
    """All steps are recorded; raised where the loop starts the next one.

    No `Exception`, so that a loop that goes on after errors ends all the same.
    """


class Steps:
    """Takes the events of a loop and writes its steps.

    Args:
        sight: what can be seen of the loop.
        tape: keeps and writes what was seen.
        last: number of the step after which the loop is ended.
        local_grads: whether gradients are looked at as each backward leaves them.

    Attributes:
        done: number of steps that are over.
        violations: what the loop does that no loop should, in words.
        seen: kinds that were seen at all.
    """

    def __init__(self, sight: Sight, tape: Tape, last: int, *, local_grads: bool) -> None:
        self.sight, self._tape, self._last = sight, tape, last
        self._local_grads = local_grads
        self.done = 0
        self.violations: dict[str, None] = {}
        self.seen: set[str] = set()
        self._hooks = ModelHooks(self._used_by, self._accumulated, self._keep_gradients, self.clip)
        self._running: list[Optimizer] = []
        self._updated: list[Optimizer] = []
        self._begun = self._clipped_late = False
        self._losses = self._norms = 0
        self._given: Counter[tuple[str, str]] = Counter()
        for root in sight.names.roots:
            self._hooks.watch_clip(root)
            self._hooks.watch_reads(root, called=False)

    # --- events ---------------------------------------------------------------------------------

    def forward(self, module: nn.Module) -> None:
        """End the step before, if there is one, and look at the weights that are read."""
        self._next()
        if not torch.is_grad_enabled():
            return
        new = self.sight.names.meet(module)
        self._begin()
        if new:
            self._hooks.watch_clip(module)
            self._hooks.watch_reads(module, called=True)

    def backward(self, loss: Tensor) -> None:
        """Keep the loss of a microbatch."""
        self._next()
        self._begin()
        name = f"microbatch{self._losses}"
        self._keep("loss", name, iter([whole("loss", name, full(loss.detach()), local=True)]))
        self._losses += 1

    def clip(self, norm: Tensor) -> None:
        """Keep the norm, and the gradients as they are before they are clipped."""
        self._begin()
        self._keep_gradients()
        name = f"total{self._norms + 1}" if self._norms else "total"
        self._keep("grad_norm", name, iter([whole("grad_norm", name, full(norm.detach()))]))
        self._norms += 1
        self._clipped_late = bool(self._updated) and not self._running

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Keep what the optimizer is about to read; a closure has yet to compute gradients."""
        if closure or any(one is optimizer for one in self._updated):
            self._next()
        self._begin()
        self._running.append(optimizer)
        self._clipped_late = False
        self._meet(optimizer)
        if not closure:
            self._keep_read(optimizer)

    def updated(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Note that the step has made an update."""
        if closure:
            self._keep_read(optimizer)
        self._running = [one for one in self._running if one is not optimizer]
        self._updated.append(optimizer)

    def scaled(self, scaler: torch.amp.GradScaler, optimizer: Optimizer) -> None:
        """Take an update that an overflow has skipped for one."""
        self.sight.scaler = scaler
        if not any(one is optimizer for one in self._updated):
            self.update(optimizer, closure=False)
            self.updated(optimizer, closure=False)

    def see(self, kind: str, name: str, tensor: Tensor, of: Extent | None, *, local: bool) -> None:
        """Keep an observation of the script's own; the n-th of one name in a step is numbered.

        Raises:
            RuntimeError: no step has begun.
        """
        if not self._begun:
            raise RuntimeError(
                expected_but_got(
                    "record.see in a step, which begins with a forward,",
                    f"record.see({kind!r}, {name!r}, ...) before the first one",
                    "call it after the forward",
                )
            )
        self._given[kind, name] += 1
        times = self._given[kind, name]
        name += f" #{times}" if times > 1 else ""
        self.seen.add(kind)
        if self._tape.writes(self.done + 1):
            own = self.sight.given(kind, name, tensor, of, local=local)
            self._tape.step.keep(f"see in {self._phase}", f"{kind} {name}", own)

    def close(self) -> None:
        """Take back what was put into modules."""
        self._hooks.close()

    def finish(self) -> None:
        """Write the last step, if the loop has ended by itself after it."""
        if self._updated:
            self._end_step()

    @property
    def _phase(self) -> str:
        """Return the phase that runs, as far as a loop shows it."""
        if self._updated:
            return "optimizer_step"
        return "clip_grads" if self._norms or self._running else "forward_backward"

    # --- what is kept while a step runs ---------------------------------------------------------

    def _begin(self) -> None:
        if self._begun:
            return
        if self._local_grads:
            self._hooks.watch_gradients(self.sight.names.parameters())
        if not self.done:
            self._tape.start(self.sight)
            self._tape.first.keep("model", "", self.sight.model_state())
        self._begun = True

    def _meet(self, optimizer: Optimizer) -> None:
        self.sight.meet(optimizer)
        name = str(self.sight.optimizers.index(optimizer))
        if not self.done:
            self._tape.first.keep("numbers", name, self.sight.numbers(optimizer))
            self._tape.first.keep("state", name, self.sight.kept_by(optimizer))
        self._keep("numbers", name, self.sight.numbers(optimizer))

    def _accumulated(self, name: str, parameter: Tensor) -> None:
        self._keep_all("grad", self.sight.accumulated(name, parameter, self._losses - 1))

    def _used_by(self, modules: Sequence[nn.Module]) -> None:
        for module in modules:
            self._keep_all("used_param", self.sight.used(module))

    def _keep_gradients(self) -> None:
        self._keep_all("reduced_grad", self.sight.gradients())

    def _keep_read(self, optimizer: Optimizer) -> None:
        self._keep_gradients()
        self._keep_all("final_grad", self.sight.read_by(optimizer))

    def _keep_all(self, kind: str, shown: Shown) -> None:
        for name, seen in shown:
            self._keep(kind, name, seen)

    def _keep(self, kind: str, name: str, seen: Iterator[Observation]) -> None:
        self.seen.add(kind)
        if self._tape.writes(self.done + 1):
            self._tape.step.keep(kind, name, seen)

    # --- the end of a step ----------------------------------------------------------------------

    def _next(self) -> None:
        """End the step if it has made its update, unless an optimizer is in the middle of one.

        Raises:
            Enough: that was the last one.
        """
        if self._updated and not self._running:
            self._end_step()
        if self.done == self._last:
            raise Enough

    def _end_step(self) -> None:
        if self._clipped_late:
            too_late = f"gradients were clipped after the update of step {self.done + 1}"
            self.violations[too_late] = None
        if not self.done and self._tape.writes(0):
            self._tape.write(INIT, self._tape.started())
        self.done += 1
        if self._tape.writes(self.done):
            for phase, seen in zip(STEP_PHASES, self._phases(), strict=True):
                given = self._tape.step.kept(f"see in {phase}")
                self._tape.write(self._moment(phase), chain(seen, given))
        self._updated, self._begun, self._clipped_late = [], False, False
        self._losses = self._norms = 0
        self._given.clear()
        self._tape.begin(self.done + 1)

    def _phases(self) -> Iterator[Iterator[Observation]]:
        """Yield what each phase of a step shows."""
        kept = self._tape.step.kept
        yield chain(kept("used_param"), kept("loss"), kept("grad"))
        yield kept("reduced_grad")
        yield chain(kept("grad_norm"), kept("final_grad"), kept("numbers"))
        yield self.sight.state()

    def write_end(self) -> None:
        """Show what the last step set for a next one."""
        self._tape.write(self._moment(END), self.sight.all_numbers())

    def _moment(self, phase: str) -> Moment:
        return Moment(self.done - 1, "train", self.done, phase)
