"""Record where tensors that were copied into a flat buffer begin.

What a buffer holds is known if each tensor in it is, whatever the order; so buffers are digested
tensor by tensor, and so is what a collective or an operation on elements makes of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any

from torch import Tensor

MOST_CUTS = 4096
"""Cuts of one memory, beyond which it is taken for one that is filled row by row."""


class Cuts:
    """Tracks the byte offsets ("cuts") at which tensors copied into a flat buffer begin.

    Args:
        number: numbers the memory of a tensor.
    """

    def __init__(self, number: Callable[[Tensor], int]) -> None:
        self._number = number
        self._of: dict[int, set[int]] = {}

    def inside(self, tensor: Tensor) -> list[int]:
        """Return the sorted offsets (> 0) in a tensor at which copies of other tensors begin."""
        cuts = self._of.get(self._number(tensor)) if self._of else None
        if not cuts or len(cuts) > MOST_CUTS or not tensor.is_contiguous():
            return []
        size = tensor.element_size()
        start = tensor.storage_offset() * size
        stop = start + tensor.numel() * size
        # Of a view in another dtype, a cut may lie within an element.
        inner = (cut - start for cut in cuts if start < cut < stop)
        return sorted(place // size for place in inner if place % size == 0)

    def follow(
        self,
        name: str,
        args: Sequence[Any],
        read: Sequence[Tensor],
        results: Sequence[Tensor],
        changed: Sequence[Tensor],
    ) -> None:
        """Record where an operation's input tensors begin in the tensors that it made or wrote to.

        Args:
            name: of the operator.
            args: its arguments by place.
            read: all tensors among the arguments.
            results: what it returned.
            changed: those of the arguments that it has written to.
        """
        for tensor in changed:
            whole = tensor.untyped_storage().nbytes()
            if tensor.numel() * tensor.element_size() < whole and tensor.is_contiguous():
                self._note(tensor, (0, tensor.numel()))
        joined = args[0] if args and isinstance(args[0], (list, tuple)) else ()
        sizes = _sizes(name, args, joined) if len(joined) > 1 else ()
        for result in results if sizes else ():
            if result.is_contiguous() and result.numel() % sum(sizes) == 0:
                self._note(result, _repeated(sizes, result.numel()))
        for tensor in read if self._of else ():
            cuts = self.inside(tensor)
            for result in results if cuts else ():
                self._pass_on(tensor, cuts, result)

    def _pass_on(self, tensor: Tensor, cuts: Sequence[int], result: Tensor) -> None:
        """Compute where copies begin in an operation's result from where they begin in its input.

        The result has the input's size, or was gathered or scattered from it.
        """
        if self._number(tensor) == self._number(result) or not result.is_contiguous():
            return
        before, after = tensor.numel(), result.numel()
        if after % before == 0:
            sizes = [b - a for a, b in zip((0, *cuts), (*cuts, before), strict=True)]
            self._note(result, _repeated(sizes, after))
        elif before % after == 0:
            self._note(result, [cut for cut in cuts if cut < after])

    def _note(self, tensor: Tensor, elements: Iterable[int]) -> None:
        size = tensor.element_size()
        start = int(tensor.storage_offset()) * size
        cuts = self._of.setdefault(self._number(tensor), set())
        if len(cuts) <= MOST_CUTS:
            cuts.update(start + element * size for element in elements)


def _sizes(name: str, args: Sequence[Any], joined: Sequence[Any]) -> list[int]:
    """Return the sizes of the tensors that an operator has concatenated; [] for any other."""
    if not all(isinstance(tensor, Tensor) for tensor in joined):
        return []
    if name in ("chunk_cat", "_chunk_cat"):
        chunks = int(args[2])
        return [
            -(-len(tensor) // chunks) * (tensor.numel() // max(len(tensor), 1)) for tensor in joined
        ]
    flat = all(tensor.dim() == 1 for tensor in joined)
    return [tensor.numel() for tensor in joined] if flat and name in IN_A_ROW else []


IN_A_ROW = frozenset({"cat", "all_gather_copy_in"})
"""Names of operators that put tensors one after the other."""


def _repeated(sizes: Sequence[int], elements: int) -> list[int]:
    """Return the offset of each part in a buffer of `elements` that repeats these part sizes."""
    row = sum(sizes)
    begins = [0, *accumulate(sizes)][:-1]
    return [first + begin for first in range(0, elements, row) for begin in begins]
