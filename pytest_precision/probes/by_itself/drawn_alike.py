"""Find ranks that draw the same random numbers for different data.

What is drawn between the first forward of a microbatch and its backward are masks and noise. Ranks
whose losses differ have different data, so that equal draws make their noise dependent. It is a
note, since several frameworks seed all ranks alike. Data that every rank draws whole, to take its
share, are drawn before the forward.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from pytest_precision.probes.by_itself.generators import random_state
from pytest_precision.probes.by_itself.run_judge import JudgedRun, RunJudge, has_peers
from pytest_precision.trace.digests import digest

COMPARED_MICROBATCHES = 4
"""Microbatches of which draws are compared: two generators that begin alike stay alike."""


class DrawnAlike(RunJudge):
    """Logs what each rank draws for its first microbatches, beside its losses."""

    rule: ClassVar[str] = "drawn_alike"
    kind: ClassVar[str] = "rng"
    fails: ClassVar[bool] = False

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        self._start: Tensor | None = None
        self._microbatches = 0

    def forward(self, module: nn.Module) -> None:
        """Remember the state of the generators before the first forward of a microbatch."""
        begins = self._start is None and self._microbatches < COMPARED_MICROBATCHES
        if begins and torch.is_grad_enabled() and has_peers():
            self._start = random_state()

    def backward(self, loss: Tensor) -> Tensor:
        """Log what was drawn since then, if this rank has chosen its own seed."""
        start, self._start = self._start, None
        if start is None:
            return loss
        self._microbatches += 1
        end = random_state()
        if not torch.equal(start, end) and torch.initial_seed() not in self.run.seeds:
            self.hold(
                "ranks drew the same random numbers for different data, such as masks of dropout, "
                "from step {step} on",
                place=f"microbatch {self._microbatches}",
                digest=digest(torch.cat((start, end))),
                beside=digest(loss.detach().cpu().contiguous()),
            )
        return loss
