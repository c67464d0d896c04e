"""Steps: what a loop does, as it is told of it, divided into train steps and written down.

A step is what lies between two updates, and its end is seen at the start of the next one: a
scheduler, a second optimizer or a clip that comes too late belongs to the step before. So what is
gone by then is kept when it is there, and the whole step is written at once.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision.errors import expected_but_got, named
from pytest_precision.recorders.lost_updates import UpdateMeter, Watched
from pytest_precision.recorders.scripts.by_hand import ByHand
from pytest_precision.recorders.scripts.course import Course
from pytest_precision.recorders.scripts.edge import Edge
from pytest_precision.recorders.scripts.locate import Extent, Locate, expect_locate
from pytest_precision.recorders.scripts.names import Models
from pytest_precision.recorders.scripts.notes import Notes
from pytest_precision.recorders.scripts.overflow import Overflow
from pytest_precision.recorders.scripts.sight import Sight
from pytest_precision.recorders.scripts.tape import Tape
from pytest_precision.trace.moment import Moment

ON_DEMAND = "grad"
"""The kind that is seen only where it is asked for."""


class StopRecording(BaseException):
    """All steps are recorded; raised where the loop starts the next one.

    No `Exception`, so that a loop that goes on after errors ends all the same.
    """


class Steps:
    """Takes the events of a loop and writes its steps.

    Args:
        sight: what can be seen of the loop.
        tape: keeps and writes what was seen.
        course: what the loop is to make; it is ended after that.
        meter: measures the updates; None for a loop that pays nothing for it.

    Attributes:
        notes: what the step shows that is running.
        violations: what the loop does that no loop should, in words.
    """

    def __init__(
        self, sight: Sight, tape: Tape, course: Course, meter: UpdateMeter | None = None
    ) -> None:
        self.sight, self.course, self._tape, self._meter = sight, course, tape, meter
        self.notes = Notes(sight, tape, course.done + 1, self.clip)
        self.violations: dict[str, None] = {}
        self._running: list[Optimizer] = []
        self._met: list[Optimizer] = []
        self._updated: list[Optimizer] = []
        self._watched: list[Watched] = []
        self._begun = self._clipped = self._clipped_late = self._given_up = False
        self._told_late = False
        self._overflow = Overflow(course, tape)
        self._edge = Edge(sight, tape, course)
        self._evaluated: list[nn.Module] = []
        self._by_hand = ByHand(course.asked)

    @property
    def done(self) -> int:
        """Return the number of train steps that are over."""
        return self.course.done

    def tell(self, models: Models, see: Collection[str], locate: Locate | None) -> None:
        """Take in what the loop does not show; see `Record`.

        Raises:
            TypeError: something is of another type.
            ValueError: nothing but `grad` is seen on demand.
            RuntimeError: the loop has begun.
        """
        expect_locate(locate)
        if {*see} - {ON_DEMAND}:
            raise ValueError(expected_but_got(f"see={{{ON_DEMAND!r}}}", named("see", see)))
        if self._begun or not self.notes.fresh:
            raise RuntimeError(
                expected_but_got(
                    "record() before the first forward of the loop",
                    "it after that",
                    "move it up, to where the model and the optimizer have been made",
                )
            )
        for root in self.sight.names.add(models):
            self.notes.watch(root, called=False)
        self.sight.locate = locate
        self.notes.local_grads |= ON_DEMAND in see

    # --- events ---------------------------------------------------------------------------------

    def forward(self, module: nn.Module) -> None:
        """End the step before, if there is one, and look at the weights that are read.

        A module that holds nothing of what is trained, such as an average, ends none.
        """
        names = self.sight.names
        at_edge = self._updated or not self._begun or not names.knows(module)
        if at_edge and names.lent(module):
            names.meet(module)
            self.notes.cannot_read(module, "called with weights that are not its own")
            return
        trains = torch.is_grad_enabled()
        begins = trains and names.begins(module)
        if trains or names.knows(module):
            self._end_if_over()
            self._edge.reach(module, trains=trains, begins=begins)
        if not trains:
            self._evaluate(module)
            return
        new = names.meet(module)
        if not names.anything:  # what holds nothing may be called before the model
            return
        self._begin()
        if new:
            self.notes.watch(module, called=True)
        elif begins and not self._overflow.backwards:
            self.notes.read_anew(module)

    def transformed(self, module: nn.Module) -> None:
        """Note a call that nothing can be seen of."""
        self.sight.names.meet(module)
        self.notes.cannot_read(module, "called inside a transform of torch.func")

    def backward(self, loss: Tensor) -> Tensor:
        """Keep the loss of a microbatch; return what its backward starts from.

        In a step that is to be skipped, this overflows on the last rank.

        Raises:
            RuntimeError: such a step does not end, or weights move though no optimizer steps.
            StopRecording: all steps are over.
        """
        self._end_if_over()
        self._go_on()
        self._begin()
        self.notes.loss(loss)
        start = self._overflow.backward(loss)
        if self.notes.fresh and not self._met and not self._updated:
            self._by_hand.backward(loss, self._overflow.backwards)
        return start

    def clip(self, norm: Tensor | None) -> None:
        """Keep the norm, if any, and the gradients as they are before they are clipped."""
        if self.notes.model_clips:
            return
        self._begin()
        self.notes.gradients()
        self._clipped = True
        self._clipped_late = bool(self._updated) and not self._running
        if norm is None:
            return
        self.notes.norm(norm)
        # A loop that looks at the norm may go on to the next batch without an update.
        overflowed = not bool(torch.isfinite(norm).all())
        self._given_up = self.course.operation == "skip" and overflowed

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Keep what the optimizer is about to read; a closure has yet to compute gradients.

        Raises:
            StopRecording: all steps are over.
        """
        again = any(one is optimizer for one in self._updated)
        goes_on = again and not closure and self.sight.goes_on(optimizer)
        if closure or (again and not goes_on):
            self._end_if_over()
        if closure:
            self._edge.begin_in_step()
        self._go_on()
        self._running.append(optimizer)
        self._clipped_late = self._given_up = False
        if closure:
            self.notes.start(optimizer)
        else:
            self._meet(optimizer, goes_on=goes_on)
            self.notes.read_by(optimizer)

    def computed(self, optimizer: Optimizer) -> None:
        """Keep what the optimizer is about to read, its gradients aside, which may come anew."""
        if not any(one is optimizer for one in self._met):
            self._meet(optimizer, goes_on=False)

    def _meet(self, optimizer: Optimizer, *, goes_on: bool) -> None:
        self._begin()
        self._met.append(optimizer)
        self.notes.meet(optimizer, goes_on=goes_on)
        if self._meter is not None and self.course.operation == "train":
            # An optimizer that runs others is not measured; those that it runs are.
            self._watched = self._meter.before(optimizer, self.sight.weights(optimizer))

    def updated(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Note that the step has made an update."""
        if closure:
            self.computed(optimizer)  # unless it has called its closure
            self.notes.read_by(optimizer)
        if self._meter is not None and self._watched:
            self._meter.after(optimizer, self._watched, self.notes.step)
            self._watched = []
        self._running = [one for one in self._running if one is not optimizer]
        self._met = [one for one in self._met if one is not optimizer]
        self._updated.append(optimizer)

    def spawned(self) -> None:
        """Refuse a loop that trains in processes which are not recorded.

        Raises:
            RuntimeError: nothing was trained in this one.
        """
        if self._begun or self.done:
            return
        raise RuntimeError(
            expected_but_got(
                "a script that trains in its own process",
                "one that starts processes with torch.multiprocessing",
                "start it by torchrun instead, or record the function that trains",
            )
        )

    def scales(self, scaler: torch.amp.GradScaler) -> None:
        """Note that a scaler is about to have an optimizer step."""
        self.sight.scaler = self.sight.beside.scaler = scaler

    def scaled(self, optimizer: Optimizer) -> None:
        """Take an update that an overflow has skipped for one."""
        if not any(one is optimizer for one in self._updated):
            self.update(optimizer, closure=False)
            self._watched = []
            self.updated(optimizer, closure=False)

    def skipped(self) -> None:
        """End the step without an update, which the loop has left out."""
        self._given_up = self._begun

    def see(
        self,
        kind: str,
        name: str,
        tensor: Tensor,
        *,
        of: Extent | None = None,
        local: bool = False,
    ) -> None:
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
        phase = "clip_grads" if self._clipped or self._running else "forward_backward"
        phase = "optimizer_step" if self._updated else phase
        self.notes.given(kind, name, tensor, of, local=local, phase=phase)

    def close(self) -> None:
        """Take back what was put into modules."""
        self.notes.close()

    def finish(self) -> None:
        """Write the last step, if the loop has ended by itself after it."""
        if self._updated or self._given_up:
            self.end_step()
        else:
            self._edge.read_anew()

    def write_end(self) -> None:
        """Show what the last step set for a next one."""
        self._edge.write_end()

    # --- the two ends of a step -----------------------------------------------------------------

    def _begin(self) -> None:
        if not self._begun:
            self.notes.begin()
            self._begun = True
            if self.notes.fresh and not self._running:
                self._edge.repeat(self.notes.begin_anew)

    def _go_on(self) -> None:
        """Begin the next step for good.

        Raises:
            StopRecording: there is none.
        """
        self._edge.leave()
        if self.course.operation is None:
            raise StopRecording

    def _end_if_over(self) -> None:
        """End the step if it has made its update, unless an optimizer is in the middle of one."""
        if (self._updated and not self._running) or self._given_up:
            self.end_step()

    def end_step(self) -> None:
        """Write the step that is over, and go on to the next operation."""
        self.notes.settle(())
        if self.notes.fresh:
            self._edge.write_start()
        self.sight.beside.end_step()
        op, operation = self.course.op, str(self.course.operation)
        self.course.advance()
        too_late = "gradients were clipped after the update of step"
        if self._clipped_late and not self._told_late:
            self._told_late = True
            self.violations[f"{too_late} {self.done}"] = None
        if operation == "skip":
            self._expect_rates()
            self._edge.write_state(op, operation)
        elif self._tape.writes(self.done):
            *passed, (last, seen) = self.notes.phases()
            for phase, shown in passed:
                self._tape.write(Moment(op, operation, self.done, phase), shown)
            self._edge.write_left(Moment(op, operation, self.done, last), [*seen])
        while self.course.operation == "save":
            self._edge.write_state(self.course.op, "save")
            self.course.advance()
        self._updated = []
        self._begun = self._clipped = self._clipped_late = self._given_up = False
        self._overflow.end_step()
        self.notes.end(self.done)
        for module in self._evaluated:
            self.sight.beside.copies.call(module)
        self._evaluated = []

    def _evaluate(self, module: nn.Module) -> None:
        """Note a call without gradients: after an update, when the step is over."""
        if self._updated:
            self._evaluated.append(module)
        else:
            self.sight.beside.copies.call(module)

    def _expect_rates(self) -> None:
        """Note a rate that a skipped step has changed: no moment before it shows the rate."""
        after = {seen.name: seen for seen in self.sight.all_numbers() if seen.kind == "lr"}
        for seen in self.notes.rates():
            now = after[seen.name].tensor
            if not torch.equal(seen.tensor, now):
                what = f"skip after step {self.done} changed lr of {seen.name}"
                self.violations[f"{what} from {float(seen.tensor)!r} to {float(now)!r}"] = None
