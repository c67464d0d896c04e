"""Find by its values where a tensor that only an optimizer holds lies in the parameters.

A loop that shards its optimizer by hand flattens the parameters in order and gives each rank a
part of them. Before the first update a part has the parameters' own values, cast to its dtype.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from itertools import pairwise

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from pytest_precision.recorders.scripts.located import PieceFields

FEWEST_VALUES = 4
"""Different values that a part must have to be known by them: a bias of zeros is anywhere."""

MOST_VALUES = 4096
"""Values of a part of which the different ones are counted."""

MOST_PLACES = 64
"""Places that are looked at whole, of those where one element fits."""

NamedParameters = list[tuple[str, Tensor]]


class FlattenedParameters:
    """The trained parameters of a model, one after the other, in which parts are looked for.

    Args:
        named_parameters: name and tensor of all parameters, in the order of the model.
    """

    def __init__(self, named_parameters: Iterable[tuple[str, Tensor]]) -> None:
        self._named_parameters = named_parameters  # read when a part is looked for, as few loops do

    def pieces(self, part: Tensor, rank: int) -> list[PieceFields] | None:
        """Return which elements of parameters a tensor holds, if its values say so; None if not.

        Args:
            part: [n]; elements beyond the last parameter are padding, whatever they hold.
            rank: this rank's number. Where several places fit, as in layers that were copied, that
                of equal parts is taken.
        """
        if part.dim() != 1 or isinstance(part, DTensor) or not _tells(part):
            return None
        for parameters, flat in zip(self._orders, self._flat, strict=True):
            start = _start_in(part.detach(), flat.to(part.device), rank)
            if start is not None:
                return [*_pieces(parameters, start, start + part.numel())]
        return None

    @cached_property
    def _orders(self) -> tuple[NamedParameters, ...]:
        trained = [
            (name, parameter)
            for name, parameter in self._named_parameters
            if parameter.requires_grad and not isinstance(parameter, DTensor) and parameter.numel()
        ]
        # Frameworks begin with what is ready first in backward.
        return (trained, trained[::-1]) if trained else ()

    @cached_property
    def _flat(self) -> list[Tensor]:
        return [
            torch.cat([p.detach().reshape(-1).to(order[0][1].device) for _, p in order])
            for order in self._orders
        ]


def _start_in(part: Tensor, flat_tensor: Tensor, rank: int) -> int | None:
    """Return the place of a part's first element among those of all parameters; None if unknown."""
    values = part.to(flat_tensor.dtype)
    anchor = int(values.nonzero()[0])
    starts: list[int] = ((flat_tensor == values[anchor]).nonzero().flatten() - anchor).tolist()
    fitting = [start for start in starts[:MOST_PLACES] if _fits(values, flat_tensor, start)]
    if len(fitting) == 1:
        return fitting[0]
    equal_parts = rank * part.numel()
    return equal_parts if equal_parts in fitting else None


def _tells(values: Tensor) -> bool:
    """Return whether a tensor has enough distinct values to be found by its values."""
    return len({*values[:MOST_VALUES].tolist()}) >= FEWEST_VALUES


def _fits(values: Tensor, flat_tensor: Tensor, start: int) -> bool:
    inside = flat_tensor[start : start + len(values)] if start >= 0 else flat_tensor[:0]
    return _tells(inside) and torch.equal(inside, values[: len(inside)])


def _pieces(parameters: NamedParameters, start: int, stop: int) -> Iterator[PieceFields]:
    """Yield the pieces between two places of the flattened parameters; the last is padding."""
    ends = [0]
    for _, parameter in parameters:
        ends.append(ends[-1] + parameter.numel())
    for (name, parameter), (begin, end) in zip(parameters, pairwise(ends), strict=True):
        first, last = max(start, begin), min(stop, end)
        if first < last:
            yield name, tuple(parameter.shape), first - begin, last - begin
    if stop > ends[-1]:
        yield None, (), 0, stop - ends[-1]


def said_of_places(names: Collection[str]) -> dict[str, str]:
    """Return the header's remark on shards whose offsets were inferred; empty if there are none.

    Args:
        names: by which the parts lie in their optimizer.
    """
    if not names:
        return {}
    first, *others = names
    more = f" and {len(others)} more" if others else ""
    return {
        f"the place in the model of the optimizer's tensor at {first}{more}": (
            "it was not told but found, since before the first update the values are those of the "
            "flattened parameters there; tell it with record(locate=function)"
        )
    }
