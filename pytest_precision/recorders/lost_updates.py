"""Lost updates: measure how much of each exact weight update was lost to rounding.

The exact update is computed in fp64 from the optimizer's own state after the step and the
hyperparameters before it, and compared with how the *effective* weight moved: on stored bf16
parameters a run with fp32 masters and one that loses nearly every update look alike. It costs one
copy of the effective weights per step, on the host. The results are kept next to the trace, as
counts and sums that add up over shards; agreement of the two sides does not depend on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor
from torch.optim import Optimizer

from pytest_precision.engine.groups import gradient
from pytest_precision.errors import NotMeasurableError
from pytest_precision.recorders.kept_weights import KeptWeights
from pytest_precision.recorders.update_from_state import Rule, rule
from pytest_precision.recorders.weights import MEASURED_AT_ONCE, Watched, Weight
from pytest_precision.trace.files import write_whole
from pytest_precision.trace.segment_folders import log_path


class UpdateMeter:
    """Measures how much of each weight update rounding lost, on one rank, step by step.

    Attributes:
        kept: the weights as they were before an update.
    """

    def __init__(self) -> None:
        self.kept = KeptWeights()
        # Slot of each logical tensor's piece: its name, and its place as text that tells it apart.
        self._pieces: dict[tuple[str, str], int] = {}
        self._steps: list[tuple[int, list[tuple[float, ...]]]] = []
        self._unmeasured: dict[str, str] = {}

    @torch.no_grad()
    def before(self, optimizer: Optimizer, weights: Iterable[Weight]) -> list[Watched]:
        """Return CPU copies of the weights that `optimizer` is about to update.

        The copies lie in the same memory each time, so they last until the next step.
        """
        groups = {
            id(parameter): {
                key: value.clone() if isinstance(value, Tensor) else value
                for key, value in group.items()
                if key != "params"
            }
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        watched = []
        for weight in weights:
            grad = gradient(optimizer, weight.parameter)
            pieces = [] if grad is None else weight.pieces(weight.effective())
            before = [
                self.kept.before((weight.name, number), piece)
                for number, piece in enumerate(pieces)
            ]
            watched.append(Watched(weight, grad, groups[id(weight.parameter)], before))
        return watched

    @torch.no_grad()
    def after(self, optimizer: Optimizer, watched: Iterable[Watched], step: int) -> None:
        """Measure how far the weights moved in a step, against the exact update in fp64."""
        rows = [row for one in watched for row in self._measured(optimizer, one)]
        self._steps.append((step, rows))

    def write(self, folder: Path, rank: int) -> None:
        """Write this rank's measurements as JSON beside its trace."""
        part = {"pieces": [*self._pieces], "steps": self._steps, "unmeasured": self._unmeasured}
        write_whole(log_path(folder, "updates", rank), part)

    def _measured(self, optimizer: Optimizer, watched: Watched) -> Iterator[tuple[float, ...]]:
        weight = watched.weight
        if watched.grad is None:
            return
        try:
            own = rule(optimizer, watched.group, weight.parameter, watched.grad)
        except NotMeasurableError as reason:
            self._unmeasured[weight.name] = str(reason)
            return
        columns = [weight.pieces(tensor) for tensor in (weight.effective(), *own.operands)]
        for before, (now, *operands) in zip(
            watched.before, zip(*columns, strict=True), strict=True
        ):
            counts = _counts(own, before, now.tensor, [operand.tensor for operand in operands])
            slot = self._pieces.setdefault((now.name, repr(now.place)), len(self._pieces))
            yield (slot, *counts)


def _counts(own: Rule, before: Tensor, after: Tensor, operands: list[Tensor]) -> tuple[float, ...]:
    """Count a shard's updates and lost updates; return these and sums of sizes and errors."""
    total = torch.zeros(6, dtype=torch.float64, device=after.device)
    chunk = MEASURED_AT_ONCE[after.device.type]
    flat = [torch.split(tensor.reshape(-1), chunk) for tensor in (before, after, *operands)]
    for old, new, *chunks in zip(*flat, strict=True):
        weight = old.to(new.device).double()
        exact = own.compute(weight, *chunks)
        moved = new.double() - weight  # no sub_: fp64 is not copied, and `new` is the weight itself
        error = exact - moved
        if not bool(error.sum().isfinite()):  # one number to look at, not as many as elements
            finite = error.isfinite()
            exact, error = exact.where(finite, 0.0), error.where(finite, 0.0)
        squares = exact.dot(exact), error.dot(error)
        # Comparisons in place, which give 0.0 and 1.0: torch's own to bool take four times as long.
        still = moved.eq_(0)
        size = exact.abs_()
        sizes = size.sum(), size.dot(still)
        updated = size.ne_(0)
        total += torch.stack((updated.sum(), updated.dot(still), *sizes, *squares))
    updates, lost, *sums = total.cpu().tolist()
    return (int(updates), int(lost), *sums)
