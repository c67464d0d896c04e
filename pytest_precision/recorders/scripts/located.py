"""Find which parts of which model tensors lie in a framework's flat parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from torch import Tensor
from torch.distributed.tensor import DTensor

from pytest_precision.engine.observable import reduced
from pytest_precision.engine.observation import Observation, Span, piece, whole
from pytest_precision.engine.readable import Stored, stored, with_zeros
from pytest_precision.errors import expected_but_got

PieceFields = tuple[str | None, Sequence[int], int, int]
"""Logical name and shape, and the elements from `start` to before `stop` of the flattened logical
tensor. A piece without a name, None or empty, is padding."""

Pieces = Iterable[PieceFields]
"""Pieces that lie one after the other."""

Locate = Callable[[Tensor], Pieces | None]
"""Returns the pieces in a parameter of a model or of an optimizer, None for one logical tensor."""

PieceOfTensor = tuple[Sequence[int], int, int]
"""The shape of a logical tensor, and the elements of it that a piece holds, from and to before."""


class Piece(NamedTuple):
    """A part of a model tensor, with where it lies in a flat parameter; or padding.

    Attributes:
        name: of the logical tensor; empty for padding.
        shape: of the logical tensor.
        place: which of its elements the piece holds.
        elements: where these lie in the flattened tensor that holds them.
    """

    name: str
    shape: tuple[int, ...]
    place: Span
    elements: slice


class LocatedTensor(NamedTuple):
    """A (perhaps flat) parameter of a loop, with the model tensors whose parts it contains.

    Attributes:
        name: its logical name, or the place where an optimizer has it.
        tensor: the parameter.
        pieces: the pieces in it; None where it is one logical tensor, or a shard of one.
    """

    name: str
    tensor: Tensor
    pieces: tuple[Piece, ...] | None = None

    @property
    def names(self) -> list[str]:
        """Return the names of the model tensors that have parts in the parameter."""
        if self.pieces is None:
            return [self.name]
        return [*dict.fromkeys(part.name for part in self.pieces if part.name)]

    def show(
        self,
        kind: str,
        tensor: Tensor,
        *,
        suffix: str = "",
        local: bool = False,
    ) -> Iterator[Observation]:
        """Yield observations of a tensor with the parameter's layout, such as a moment.

        Args:
            kind: see `Observation`.
            tensor: the parameter itself, its gradient or state of it.
            suffix: comes after the names.
            local: see `Observation`.
        """
        for part in stored(kind, tensor.detach()):
            if self.pieces is None:
                shown = reduced(part.tensor)
                yield piece(part.kind, self.name + suffix, shown, local=local or part.local)
            else:
                yield from self._pieces_of(part, suffix)

    def parts(self, tensor: Tensor) -> list[Observation]:
        """Return a tensor of the parameter's shape, split into parts of model tensors."""
        plain_value = Stored("lost_updates", with_zeros(tensor.detach()))
        if self.pieces is None:
            return [piece(plain_value.kind, self.name, plain_value.tensor)]
        return [*self._pieces_of(plain_value, "")]

    def _pieces_of(self, part: Stored, suffix: str) -> Iterator[Observation]:
        tensor = part.tensor
        if tensor.shape == self.tensor.shape and not part.local:
            for piece in self.pieces or ():
                elements = tensor.reshape(-1)[piece.elements]
                if piece.name and elements.numel():
                    name = piece.name + suffix
                    yield Observation(part.kind, name, elements, piece.shape, piece.place)
        elif tensor.numel() == 1:  # of every element, such as a counter of steps
            for name in self.names:
                yield whole(part.kind, name + suffix, tensor)
        else:
            yield whole(part.kind, self.name + suffix, tensor, local=True)


def located(name: str, tensor: Tensor, cut: Pieces | None) -> LocatedTensor:
    """Return a parameter with the parts of model tensors (`cut`) in it; raise if sizes misfit.

    Raises:
        ValueError: they are not as many elements as the parameter has, or not in their tensor.
    """
    if cut is None:
        return LocatedTensor(name, tensor)
    if isinstance(tensor, DTensor):
        raise ValueError(
            expected_but_got(
                f"locate to return None for {name}, a DTensor, which says where its shard lies,",
                "pieces",
            )
        )
    pieces: list[Piece] = []
    position = 0
    for logical, shape, start, stop in cut:
        elements = slice(position, position + stop - start)
        pieces.append(Piece(logical or "", tuple(shape), Span(start, stop), elements))
        _expect_inside(name, pieces[-1])
        position = elements.stop
    if position != tensor.numel():
        raise ValueError(
            expected_but_got(
                f"pieces of all {tensor.numel()} elements of {name}",
                f"{len(pieces)} pieces of {position} elements",
                "padding is a piece without a name: (None, (), 0, elements)",
            )
        )
    return LocatedTensor(name, tensor, tuple(pieces))


def _expect_inside(name: str, part: Piece) -> None:
    size, (start, stop) = math.prod(part.shape), (part.place.start, part.place.stop)
    if not 0 <= start <= stop or (part.name and stop > size):
        raise ValueError(
            expected_but_got(
                f"pieces in {name} that lie in their logical tensor",
                f"elements {start} to {stop} of {part.name!r}, which has {size}",
                "start and stop are positions in the flattened logical tensor",
            )
        )
