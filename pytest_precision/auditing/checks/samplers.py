"""Check that ranks take their shares of one permutation of the data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch.utils.data import DistributedSampler

from pytest_precision.auditing.facts import SetupFacts
from pytest_precision.auditing.finding import AuditFinding


class ShareSampler(NamedTuple):
    """What a distributed sampler permutes its rows by.

    Attributes:
        rows: how many there are.
        replicas: how many ranks share them.
        seed: of its permutations; None where it permutes nothing.
        epoch: it is in.
    """

    rows: int
    replicas: int
    seed: int | None
    epoch: int


def share_samplers(facts: SetupFacts) -> Iterator[ShareSampler]:
    """Yield the seed and epoch by which each distributed sampler of this rank permutes its rows."""
    for dataloader in facts.setup.dataloaders:
        sampler = getattr(dataloader, "sampler", None)
        if isinstance(sampler, DistributedSampler):
            dataset: Any = sampler.dataset  # torch says only that it has items
            seed = sampler.seed if sampler.shuffle else None
            yield ShareSampler(len(dataset), sampler.num_replicas, seed, sampler.epoch)


def samplers_apart(of_ranks: Sequence[Sequence[ShareSampler]]) -> Iterator[AuditFinding]:
    """Yield an error if samplers of all ranks differ in what they permute by.

    Args:
        of_ranks: the samplers of each rank, in the order of their data loaders.
    """
    for samplers in zip(*of_ranks, strict=False):
        alike = {(sampler.rows, sampler.replicas) for sampler in samplers}
        if alike == {(samplers[0].rows, len(of_ranks))} and len({*samplers}) > 1:
            seeds = ", ".join(f"seed {sampler.seed}, epoch {sampler.epoch}" for sampler in samplers)
            yield AuditFinding(
                "samplers-apart",
                "error",
                f"the ranks' samplers permute {samplers[0].rows} rows by {seeds}: their shares are "
                "of different permutations, and overlap",
                "give DistributedSampler the same seed on all ranks, and call set_epoch alike",
                (DistributedSampler.__name__,),
            )
