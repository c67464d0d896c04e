"""Round the train steps of a script's loop at random."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision._torch.dispatch import after_operations
from pytest_precision.probes.races.perturb.rounding_noise import RandomRounding
from pytest_precision.recorders.probe import Probe
from pytest_precision.recorders.scripts.steps import Steps
from pytest_precision.recorders.torch_hooks import LoopEvents

UPDATE = 0
"""The part of a step that updates weights; the parts before are numbered from 1."""


class LoopRounding(Probe[Steps], LoopEvents):
    """Rounds each train step of a loop at random, from a forward to the end of the update.

    What is made before the first forward, such as weights and data, stays as it is. All ranks round
    alike: a loop does not say which of them compute the same thing, and replicas that round
    differently would part. The moves are drawn anew after each backward, so that what ranks do with
    reduced gradients is rounded alike even if their batches have other sizes.

    Args:
        number: of the run, from 1.
    """

    def __init__(self, number: int) -> None:
        self._number = number

    def begin(self, run: Steps) -> None:
        """Have torch's hooks report to this, too."""
        self._run = run
        self._rounding: RandomRounding | None = None
        self._parts = 0
        run.listeners.append(self)

    @contextmanager
    def around(self, run: Steps, call: str) -> Iterator[None]:
        """Look at each operation while the loop runs."""
        with after_operations(self._round):
            yield

    def forward(self, module: nn.Module) -> None:
        """Round from here on, if nothing rounds yet."""
        if self._rounding is None:
            self._parts = 1
            self._round_part(self._parts)

    def ran_backward(self, loss: Tensor, *_: Any, **__: Any) -> None:
        """Go on with moves of their own."""
        self._parts += 1
        self._round_part(self._parts)

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Round an update, unless a closure is called first."""
        if not closure:
            self._round_part(UPDATE)

    def computed(self, optimizer: Optimizer) -> None:
        """Round the update that a closure has computed gradients for."""
        self._round_part(UPDATE)

    def updated(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Leave what follows an update as it is, up to the next forward."""
        self._rounding = None

    def _round_part(self, part: int) -> None:
        seed = (self._number * 10_007 + self._run.step) * 1_009 + part
        self._rounding = RandomRounding(seed, numbers=part != UPDATE)

    def _round(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        if self._rounding is not None:
            self._rounding(name, args, result)
