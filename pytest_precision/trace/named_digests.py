"""Choose the digest of a recording by its name, and compute it."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_precision.engine.kinds import is_shown_once_moved
from pytest_precision.engine.observation import Observation, cloned
from pytest_precision.matrix.cell import Cell
from pytest_precision.trace.digests import COPIED_BYTES, digest, kept_as_it_is
from pytest_precision.trace.lin8 import LIN8, partial_digests
from pytest_precision.trace.lin8_sums import DigestedPart

XXH3 = "xxh3-128"
"""Name of the digest of whole tensors, which a CPU computes as fast as it reads them."""

DIGEST_NAMES = (LIN8, XXH3)


def digest_name_of_cell(cell: Cell) -> str:
    """Return the name of the digest with which both sides of a check are recorded.

    Where one side has several ranks, either may hold shards, and on a device nothing is copied to
    the host for a sum.
    """
    return LIN8 if cell.fewest_microbatches > 1 or cell.device != "cpu" else XXH3


def digest_name_of_kind(name: str, kind: str) -> str:
    """Return the name of the digest of one kind of tensors in a recording.

    What is shown only once it has changed is whole on each rank, and is compared with what it was
    at first, which an engine has as `xxh3-128`.

    Args:
        name: that of the recording.
        kind: of the tensors.
    """
    return XXH3 if is_shown_once_moved(kind) else name


def adds_up(name: str) -> bool:
    """Return whether digests of this name of shards can be added to that of the whole tensor."""
    return name == LIN8


def named_digests(name: str, parts: Sequence[DigestedPart]) -> list[str]:
    """Return the digests of this name of parts of tensors."""
    if name == LIN8:
        return partial_digests(parts)
    return [digest(part.tensor) for part in parts]


def digested(observation: Observation, name: str) -> Observation:
    """Replace a large tensor's values by their digest; copy few bytes, losses and gradient norms.

    Args:
        observation: of the tensor.
        name: of the digest of the recording.
    """
    tensor = observation.tensor
    nbytes = tensor.numel() * tensor.element_size()
    if kept_as_it_is(observation.kind, nbytes):
        return cloned(observation)
    if nbytes <= COPIED_BYTES:
        return observation.with_tensor(tensor.detach().clone())  # where it is
    part = DigestedPart(tensor, observation.shape, observation.place)
    (text,) = named_digests(digest_name_of_kind(name, observation.kind), [part])
    return observation.with_tensor(tensor.to("meta"), text)
