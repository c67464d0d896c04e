"""Join what the workers of an inference engine hold of a weight, as digests that add up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from pkgutil import resolve_name
from typing import NamedTuple

from torch import Tensor

from pytest_precision.engine.observation import Chunk
from pytest_precision.errors import expected_but_got, is_bad_input
from pytest_precision.matrix.contract import dtype_name
from pytest_precision.trace.lin8 import added_digest, partial_digest

__tracebackhide__ = is_bad_input

LEAVE_OUT = 'leave it out by criterion={"weight:NAME": unchecked(reason="...")}'


class WorkerPart(NamedTuple):
    """A part of a weight in one worker, as plain data: no tensor travels.

    Attributes:
        dtype: of the weight.
        shape: of the whole weight.
        offsets, sizes: of the part, in each dimension.
        digest: of the part, at its place in the whole.
    """

    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    digest: str

    @classmethod
    def of(
        cls, part: Tensor, dimension: int = 0, start: int = 0, length: int | None = None
    ) -> WorkerPart:
        """Digest a part that lies from `start` on in a dimension of `length`; whole unless told."""
        shape, offsets = [*part.shape], [0] * part.ndim
        if length is not None:
            shape[dimension], offsets[dimension] = length, start
        return cls.placed(part, shape, offsets)

    @classmethod
    def placed(cls, part: Tensor, shape: Sequence[int], offsets: Sequence[int]) -> WorkerPart:
        """Digest a part that lies at these offsets in a weight of this shape."""
        place = Chunk(tuple(offsets), tuple(part.shape))
        digest = partial_digest(part.detach(), [*shape], place)
        return cls(dtype_name(part.dtype), tuple(shape), place.offsets, place.sizes, digest)


def joined_digests(workers: Sequence[Mapping[str, Sequence[WorkerPart]]]) -> dict[str, str]:
    """Return the digest of each weight, from the parts that each worker holds of it.

    Raises:
        ValueError: two workers hold other bytes of the same part, or a part is in no worker.
    """
    names = dict.fromkeys(name for worker in workers for name in worker)
    return {
        name: _joined(name, [part for worker in workers for part in worker.get(name, ())])
        for name in names
    }


def _joined(name: str, parts: Iterable[WorkerPart]) -> str:
    by_place: dict[tuple[int, ...], WorkerPart] = {}
    for part in parts:
        first = by_place.setdefault((*part.shape, *part.offsets, *part.sizes), part)
        if part != first:
            got = f"others in two workers of {name}, {[*part.sizes]} at {[*part.offsets]}"
            advice = f"look at what sends it, or {LEAVE_OUT}: it may be cut in an unknown way"
            raise ValueError(expected_but_got("the same bytes in all workers", got, advice))
    first = next(iter(by_place.values()))
    held_elements = sum(prod(part.sizes) for part in by_place.values())
    if held_elements != prod(first.shape):
        got = f"{held_elements} of {prod(first.shape)} elements of {name}"
        raise ValueError(expected_but_got("weights whose parts are in the workers", got, LEAVE_OUT))
    described = resolve_name("pytest_precision.rollout.inference_weights:described_digest")
    digest: str = described(
        first.dtype, first.shape, added_digest(part.digest for part in by_place.values())
    )
    return digest
