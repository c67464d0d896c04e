"""Find samplers that permute their rows in another order on each rank.

Each rank takes its share of one permutation. Ranks that permute by their own seeds train on some
rows twice in an epoch, and on others never. Of a sampler of another class than torch's, which knows
of several ranks, the permutations of all its rows are compared; one of a rank's own rows is its
own matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from typing import Any, ClassVar

import torch.distributed as dist
from torch import Tensor
from torch.utils.data import DistributedSampler, Sampler

from pytest_precision.probes.by_itself.run_judge import JudgedRun, RunJudge, has_peers
from pytest_precision.trace.digests import digest


class PermutedApart(RunJudge):
    """Logs by which seed and epoch torch's distributed sampler permutes its rows."""

    rule: ClassVar[str] = "permuted_apart"
    kind: ClassVar[str] = "rng"

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        self._epochs: Counter[int] = Counter()
        self._drawn: Counter[str] = Counter()

    def permutes(self, sampler: Any) -> None:
        """Log the permutation of an epoch, where all ranks share the rows."""
        if not has_peers() or sampler.num_replicas != dist.get_world_size():
            return  # the ranks of another group may have other rows
        rows = len(sampler.dataset)
        self._epochs[rows] += 1
        self.hold(
            "ranks take their shares of different permutations of one data set, by the seeds or "
            "epochs of their DistributedSampler, from step {step} on",
            place=f"epoch {self._epochs[rows]} of {rows} rows",
            digest=f"seed {sampler.seed}, epoch {sampler.epoch}" if sampler.shuffle else "in order",
        )

    def permuted(self, order: Tensor, owner: Any) -> None:
        """Log the permutation that another sampler of several ranks draws of all its rows."""
        if type(owner) is DistributedSampler or not has_peers() or not _is_shared(owner):
            return
        rows = order.numel()
        state = vars(owner)
        lengths = {len(part) for part in state.values() if isinstance(part, Sized)}
        if rows not in lengths or state.get("num_samples") == rows:
            return
        name = type(owner).__name__
        self._drawn[name] += 1
        self.hold(
            f"ranks take their shares of different permutations of one data set, as their {name} "
            "draws them, from step {step} on",
            place=f"permutation {self._drawn[name]} by {name} of {rows} rows",
            digest=digest(order.cpu().contiguous()),
        )


def _is_shared(owner: Any) -> bool:
    """Return whether an object is a sampler that gives each rank of all its share."""
    if not isinstance(owner, Sampler):
        return False
    counts = (getattr(owner, name, None) for name in ("num_replicas", "world_size"))
    return dist.get_world_size() in counts
