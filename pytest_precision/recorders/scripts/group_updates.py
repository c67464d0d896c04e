"""Group updates: the parameters that each optimizer updated, even if it steps group by group.

DeepSpeed's ZeRO puts one group after the other into its optimizer and has it step, so that a step
of the loop has as many updates as there are groups; ZeRO 3 takes the group out again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer

from pytest_precision.engine import groups

MemberGroup = tuple[Mapping[str, Any], list[Tensor]]
"""A group with the parameters that are or were in it."""


class Updates:
    """Remembers which parameters each optimizer has updated in its last step of the loop."""

    def __init__(self) -> None:
        self._last: WeakKeyDictionary[Optimizer, list[list[MemberGroup]]] = WeakKeyDictionary()
        # Keeps each tensor alive, and with it its id.
        self._places: dict[int, tuple[str, Tensor]] = {}

    def add(self, optimizer: Optimizer, *, goes_on: bool) -> int:
        """Register the parameters in an optimizer's groups, which it is about to update.

        Args:
            optimizer: it.
            goes_on: whether it is the same step's, which it has updated other parameters in.

        Returns:
            The number of its updates before this one in this step.
        """
        updates = self._last.setdefault(optimizer, [])
        if not goes_on:
            updates.clear()
        updates.append([(group, [*own]) for group, own in groups.group_members(optimizer)])
        together: dict[int, MemberGroup] = {}
        for group, own in self._groups(optimizer):
            together.setdefault(id(group), (group, []))[1].extend(own)
        for place, parameter in groups.places(together.values()):
            self._places.setdefault(id(parameter), (place, parameter))
        return len(updates) - 1

    def lacks(self, optimizer: Optimizer) -> bool:
        """Return whether all of an optimizer's parameters are new since its last step."""
        now = _ids(groups.group_members(optimizer))
        return bool(now) and not now & _ids(self._groups(optimizer))

    def members(self, optimizer: Optimizer, *, whole: bool) -> Iterator[MemberGroup]:
        """Yield each group's parameters; if `whole`, also those removed since the last step."""
        now = [(group, [*own]) for group, own in groups.group_members(optimizer)]
        yield from now
        if whole:
            held = _ids(now)
            for group, own in self._groups(optimizer):
                yield group, [parameter for parameter in own if id(parameter) not in held]

    def placed(self, optimizer: Optimizer, *, whole: bool) -> Iterator[tuple[str, Tensor]]:
        """Yield (place, parameter), as `param_groups.0.params.3`; each keeps its first place."""
        for place, parameter in groups.places(self.members(optimizer, whole=whole)):
            yield self._places.get(id(parameter), (place,))[0], parameter

    def _groups(self, optimizer: Optimizer) -> Iterator[MemberGroup]:
        return chain.from_iterable(self._last.get(optimizer, ()))


def _ids(members: groups.Members) -> set[int]:
    return {id(parameter) for _, own in members for parameter in own}
