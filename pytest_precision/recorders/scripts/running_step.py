"""Running step: what a loop has done in its current step: backwards, clips and updates."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from torch import nn
from torch.optim import Optimizer


@dataclass
class RunningStep:
    """The events of a loop's current step: its backwards, clips and optimizer steps.

    Attributes:
        begun: whether anything of it was seen.
        backwards: how many it has made, each from a loss.
        norms: how many norms of gradients were seen.
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
        """Return whether the step has made its update or left it out."""
        return bool(self.updated and not self.running) or self.given_up

    @property
    def phase(self) -> str:
        """Return the phase that a tensor given to `record.see` now belongs to."""
        if self.updated:
            return "optimizer_step"
        return "clip_grads" if self.clipped or self.running else "forward_backward"

    def clip(self) -> None:
        """Note that gradients are clipped, and whether too late: after the optimizer's step."""
        self.clipped = True
        self.clipped_late = bool(self.updated) and not self.running

    def start(self, optimizer: Optimizer) -> None:
        """Note that an optimizer's `step` begins within this train step."""
        self.running.append(optimizer)
        self.clipped_late = self.given_up = False

    def end(self, optimizer: Optimizer) -> None:
        """Note that an optimizer's `step` has returned within this train step."""
        self.running = [one for one in self.running if one is not optimizer]
        self.met = [one for one in self.met if one is not optimizer]
        self.updated.append(optimizer)

    def has_updated(self, optimizer: Optimizer) -> bool:
        """Return whether an optimizer's step has returned within this train step."""
        return any(one is optimizer for one in self.updated)

    def next(self) -> RunningStep:
        """Return a record for the next step, keeping optimizers whose `step` still runs."""
        return RunningStep(running=self.running, met=self.met)
