"""Find samplers that permute their rows in another order on each rank.

Each rank takes its share of one permutation. Ranks that permute by their own seeds train on some
rows twice in an epoch, and on others never.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import torch.distributed as dist

from pytest_precision.probes.by_itself.run_judge import JudgedRun, RunJudge, has_peers


class PermutedApart(RunJudge):
    """Logs by which seed and epoch torch's distributed sampler permutes its rows."""

    rule: ClassVar[str] = "permuted_apart"
    kind: ClassVar[str] = "rng"

    def __init__(self, run: JudgedRun) -> None:
        super().__init__(run)
        self._epochs: Counter[int] = Counter()

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
