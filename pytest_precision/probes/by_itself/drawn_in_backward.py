"""Find random numbers that a backward draws anew where it computes modules again.

A block that is computed again draws its masks from a generator that is set to where it was in the
forward, and set back: the backward leaves the generator as it found it. What draws on has other
masks than the forward had. A backward that calls no module may draw, as one that rounds its
gradients stochastically.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from pytest_precision.probes.by_itself.generators import random_state
from pytest_precision.probes.by_itself.run_judge import JudgedRun, RunJudge


class DrawnInBackward(RunJudge):
    """Finds backwards that call modules and leave torch's generator in another state."""

    rule: ClassVar[str] = "drawn_in_backward"
    kind: ClassVar[str] = "rng"

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        self._before: Tensor | None = None
        self._recomputes = False

    def forward(self, module: nn.Module) -> None:
        """Note a module that a backward calls."""
        self._recomputes = self._recomputes or self._before is not None

    def backward(self, loss: Tensor) -> Tensor:
        """Remember the state of the generator."""
        self._before, self._recomputes = random_state(), False
        return loss

    def ran_backward(self, loss: Tensor, *_: object, **__: object) -> None:
        """Compare it with what the backward has left."""
        before, self._before = self._before, None
        if before is not None and self._recomputes and not torch.equal(before, random_state()):
            self.find(
                "the backward of step {step} drew random numbers that are not those of the "
                "forward, as where dropout is computed again without its random state"
            )
