"""Find parameters that an optimizer leaves alone, though they have a gradient and a rate.

An optimizer of one's own may take matrices alone, or those with a name. What it leaves as it is has
neither another value nor state after several updates, while others of its group have moved. An
optimizer may pass a parameter over on purpose, so that this is a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from pytest_precision._torch.dispatch import version
from pytest_precision.engine.groups import group_members, state_of
from pytest_precision.probes.by_itself.run_judge import JudgedRun
from pytest_precision.probes.by_itself.update_judge import UpdateJudge, some_of

WATCHED_UPDATES = 3
"""Updates of an optimizer that are looked at, all of which must leave the parameter alone."""


class LeftParameter(NamedTuple):
    """A parameter before an update.

    Attributes:
        group: tells its group from others.
        parameter: it.
        version: how often it was written in place.
        values: some of its elements, by which it is told to have moved that is written through its
            data.
    """

    group: int
    parameter: Tensor
    version: int
    values: Tensor


class SkippedGradients(UpdateJudge):
    """Notes parameters with a gradient that the updates of their optimizer never touch."""

    rule: ClassVar[str] = "skipped_gradient"
    kind: ClassVar[str] = "grad"
    watched: ClassVar[int] = WATCHED_UPDATES
    fails: ClassVar[bool] = False

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        # By id, with the tensor, whose id no other one gets; False once it has moved.
        self._alone: dict[int, tuple[Tensor, bool]] = {}
        self._moved: set[int] = set()
        self._before: dict[Optimizer, list[LeftParameter]] = {}

    def begins(self, optimizer: Optimizer) -> None:
        """Remember the parameters of each group that has a rate, as they are before the update."""
        before = self._before[optimizer] = []
        for group, parameters in group_members(optimizer):
            for parameter in parameters if _has_rate(group) else ():
                if parameter.grad is not None and _is_plain(parameter):
                    row = id(group["params"]), parameter, version(parameter)
                    before.append(LeftParameter(*row, some_of(parameter).clone()))

    def ended(self, optimizer: Optimizer) -> None:
        """Tell the parameters that the update has touched from those that it has not."""
        for group, parameter, number, values in self._before.pop(optimizer, []):
            touched = version(parameter) != number or bool(state_of(optimizer, parameter))
            if touched or not torch.equal(values, some_of(parameter)):
                self._moved.add(group)
                self._alone[id(parameter)] = parameter, False
            elif bool(parameter.grad is not None and parameter.grad.any()):
                self._alone.setdefault(id(parameter), (parameter, True))

    def over(self) -> None:
        """Note the parameters that were left alone, if updates have moved others."""
        enough = [count for count in self.updates.values() if count >= WATCHED_UPDATES]
        alone = [parameter for parameter, is_alone in self._alone.values() if is_alone]
        if alone and self._moved and enough:
            self.find(
                "{name} has a gradient that its optimizer never uses: no update touches it",
                alone[0],
                len(alone) - 1,
            )


def _has_rate(group: Mapping[str, Any]) -> bool:
    rate = group.get("lr")
    return rate is None or bool(rate)


def _is_plain(parameter: Tensor) -> bool:
    kind = type(parameter)
    return kind in (Tensor, torch.nn.Parameter) and parameter.layout == torch.strided
