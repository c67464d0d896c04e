"""Find copies that a model computes with, and that nobody makes anew once their source was updated.

Where an optimizer updates masters or shards, the loop hands it the gradients of what the model
reads: a cast of them, or what all ranks have gathered. A tensor that had the value of such a source
before an update must not have it still in the next loss. A copy that trains by itself is in an
optimizer, and a teacher is read without gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from pytest_precision._torch.distributed import is_dtensor
from pytest_precision.engine.groups import updated_tensors
from pytest_precision.probes.by_itself.graph_leaves import nodes_on_leaves
from pytest_precision.probes.by_itself.run_judge import JudgedRun, has_peers
from pytest_precision.probes.by_itself.update_judge import UpdateJudge, some_of
from pytest_precision.trace.digests import digest

WATCHED_UPDATES = 3
"""Updates of an optimizer before which copies of what it updates are looked for."""


class KeptCopy(NamedTuple):
    """A copy that has the value of its source before an update.

    Attributes:
        copy: a leaf that a loss depends on.
        source: what the optimizer updates.
        before: digest of some elements of both, in the dtype of the copy.
    """

    copy: Tensor
    source: Tensor
    before: str


class KeptCopies(UpdateJudge):
    """Finds losses that depend on the value which a master or shard had before an update."""

    rule: ClassVar[str] = "kept_copy"
    kind: ClassVar[str] = "used_param"
    watched: ClassVar[int] = WATCHED_UPDATES

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        self._leaves: dict[int, Tensor] = {}
        self._pairs: list[KeptCopy] = []

    def backward(self, loss: Tensor) -> Tensor:
        """Look at copies as this loss has read them, and learn what losses depend on."""
        stale = [pair for pair in self._pairs if _is_kept(pair)]
        self._pairs.clear()
        if stale:
            self.find(
                "the model computes at step {step} with {name} as it was before an update: what "
                "it is a copy of has moved, and nobody has copied it anew",
                stale[0].copy,
                len(stale) - 1,
            )
        if not self.updates or min(self.updates.values()) < WATCHED_UPDATES:
            self._leaves |= {id(leaf): leaf for _, leaf in nodes_on_leaves(loss)}
        return loss

    def begins(self, optimizer: Optimizer) -> None:
        """Pair what gets its gradient by hand with the leaf that has its value."""
        members = {id(tensor): tensor for tensor in updated_tensors(optimizer)}
        leaves = [leaf for key, leaf in self._leaves.items() if key not in members]
        fed = [tensor for key, tensor in members.items() if key not in self._leaves]
        if leaves:
            self._pairs += _pairs(leaves, [tensor for tensor in fed if tensor.grad is not None])

    def ended(self, optimizer: Optimizer) -> None:
        """Forget what losses before the update depended on."""
        self._leaves.clear()


def _pairs(leaves: Sequence[Tensor], sources: Sequence[Tensor]) -> Iterator[KeptCopy]:
    """Yield a pair for each source whose value a leaf has, whole or as the part of this rank."""
    copies: dict[tuple[int, torch.dtype, str], Tensor] = {}
    ranks = {1, dist.get_world_size() if has_peers() else 1}
    read = [(leaf, _values(leaf)) for leaf in leaves] if sources else []
    for (leaf, whole), count in product(read, ranks):
        part = None if whole is None else _part(whole, whole.numel() // count)
        if part is not None:
            copies.setdefault((part.numel(), part.dtype, _some(part, part.dtype)), leaf)
    for source in sources:
        value = _values(source)
        if value is None or not value.is_floating_point() or bool((value == value[0]).all()):
            continue  # many tensors begin as zeros or ones
        for dtype in {dtype for _, dtype, _ in copies}:
            before = _some(value, dtype)
            copy = copies.get((value.numel(), dtype, before))
            if copy is not None:
                yield KeptCopy(copy, source, before)


def _is_kept(pair: KeptCopy) -> bool:
    """Return whether a copy has its value of before the update, and its source another one."""
    value, whole = _values(pair.source), _values(pair.copy)
    part = None if value is None or whole is None else _part(whole, value.numel())
    if part is None or value is None or _some(part, part.dtype) != pair.before:
        return False
    return _some(value, part.dtype) != pair.before


def _part(whole: Tensor, elements: int) -> Tensor | None:
    """Return the elements of a copy that a source of so many elements stands for on this rank."""
    if whole.numel() == elements:
        return whole
    if has_peers() and whole.numel() == elements * dist.get_world_size():
        return whole.view(dist.get_world_size(), elements)[dist.get_rank()]
    return None


def _values(tensor: Tensor) -> Tensor | None:
    """Return what this rank holds of a tensor as a vector.

    None of one whose memory is freed, and of another subclass, whose operators may do anything.
    """
    local = tensor.to_local() if is_dtensor(tensor) else tensor
    if type(local) not in (Tensor, nn.Parameter):
        return None
    local = local.detach()
    needed = local.numel() * local.element_size()
    if not needed or local.untyped_storage().nbytes() < needed:
        return None
    return local.reshape(-1)


def _some(values: Tensor, dtype: torch.dtype) -> str:
    """Return a digest of some elements of a vector in a dtype."""
    return digest(some_of(values).to(dtype).cpu().contiguous())
