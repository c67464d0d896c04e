"""Compare the replicas of a loop's tensors on all ranks after each N-th of its updates."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import torch.distributed as dist
import xxhash
from torch import Tensor
from torch.amp import GradScaler
from torch.optim import Optimizer

from pytest_precision._torch.dispatch import tree_leaves
from pytest_precision.engine.groups import updated_tensors
from pytest_precision.errors import expected_but_got
from pytest_precision.recorders.scripts.loop_reader import LoopReader
from pytest_precision.recorders.torch_hooks import LoopEvents
from pytest_precision.recorders.watching.mismatch import (
    BATCH,
    Mismatch,
    OnMismatch,
    answer,
)
from pytest_precision.recorders.watching.rank_link import RankLink
from pytest_precision.recorders.watching.replicas import Digests, Replicas
from pytest_precision.recorders.watching.root_calls import RootCall, RootListener
from pytest_precision.recorders.watching.teams import (
    OPTIMIZER_STATE,
    ReplicaDigest,
    Split,
    Team,
    of_holders,
    splits_of,
    teams_at_start,
    without,
)

WORDS_OF_TEAM = 3
"""Words that a rank sends of a team: which it is, and two of what it holds in common with it."""


class ReplicaWatch(LoopEvents, RootListener):
    """Compares the replicas of a loop's tensors on all ranks, and answers where they differ.

    What a rank should hold in common with others is digested before and after the update, and one
    digest of all of it is exchanged. Only where those differ, a second exchange finds the tensor. A
    rank that has deviated is compared no more, since all that follows is due to that.

    Args:
        reader: knows the loop's models and optimizers.
        every: updates after which replicas are compared, those of each optimizer by itself; 0 for
            never.
        on_mismatch: how the run answers.

    Attributes:
        steps: number of updates of the optimizer that has made most.
    """

    def __init__(self, reader: LoopReader, every: int, on_mismatch: OnMismatch) -> None:
        self._reader = reader
        self._every = every
        self._on_mismatch = on_mismatch
        self._replicas = Replicas(reader)
        self._updates: dict[Optimizer, int] = {}
        self._running: list[Optimizer] = []
        self._inner: dict[Optimizer, None] = {}
        self._gradients: list[ReplicaDigest] = []
        self._batch = xxhash.xxh3_64()
        self._batches: list[int] = []
        self._link: RankLink | None = None
        self._teams: dict[str, list[Team]] = {}
        self._own_teams: dict[str, Team] = {}
        self._most_teams = 0

    @property
    def steps(self) -> int:
        """Return the number of updates of the optimizer that has made most."""
        return max(self._updates.values(), default=0)

    def begins(self, call: RootCall) -> None:
        """Digest the inputs of a model, by which ranks are told that have the same batch."""
        digests = Digests()
        for leaf in tree_leaves((call.args, call.kwargs)):
            if isinstance(leaf, Tensor):
                digests.add(BATCH, "", "", leaf)
        self._batch.update("".join(row.digest for row in digests.rows()).encode())

    def update(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Digest the gradients that an update is about to read; at the first one, find teams.

        Raises:
            WatchError: a rank deviates, and the run is to end; or one does not come.
            RuntimeError: there are no ranks to compare.
        """
        self._inner.setdefault(optimizer)
        self._running.append(optimizer)
        if len(self._running) > 1:
            return
        self._reader.names.settle(updated_tensors(optimizer))
        self._reader.take_in(optimizer)
        self._updates[optimizer] = self._updates.get(optimizer, 0) + 1
        if self._every and self._link is None:
            self._start(optimizer)
        if self._compares(optimizer) and not closure:
            self._gradients = self._replicas.gradients(optimizer)

    def updated(self, optimizer: Optimizer, *, closure: bool) -> None:
        """Compare the replicas after an update.

        Raises:
            WatchError: a rank deviates, and the run is to end; or one does not come.
        """
        self._running.pop()
        if self._running:
            return
        inner, self._inner = [*self._inner], {}
        for each in inner:
            self._reader.take_in(each)
        if self._compares(optimizer):
            self._gradients += self._replicas.gradients(optimizer) if closure else []
            self._compare(self._gradients + self._replicas.updated(inner))
        self._gradients = []
        self._batch.reset()

    def scales(self, scaler: GradScaler, *_: Any, **__: Any) -> None:
        """Remember the scaler of the loss, whose state ranks hold in common."""
        self._reader.scaler = scaler

    def close(self) -> None:
        """Leave the process group that was made for this."""
        if self._link is not None:
            self._link.close()

    def _compares(self, optimizer: Optimizer) -> bool:
        return self._every > 0 and self._updates[optimizer] % self._every == 0

    def _start(self, optimizer: Optimizer) -> None:
        """Meet the other ranks, and find which of them hold the same."""
        ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if ranks == 1:
            advice = "make a process group of several, or watch one by replay alone"
            raise RuntimeError(expected_but_got("several ranks to compare", ranks, advice))
        self._reader.look()
        tensors = updated_tensors(optimizer)
        self._link = RankLink(tensors[0].device)
        starts = self._link.gather(self._replicas.starts([optimizer]), 0)
        teams, splits = teams_at_start(starts)
        self._keep_teams(teams, splits)
        if self._link.rank == 0:
            named = [
                of_owner for owner, of_owner in self._teams.items() if OPTIMIZER_STATE not in owner
            ]
            words = f"{sum(map(bool, named))} of {len(named)} tensors and options of {ranks} ranks"
            print(f"pytest_precision: watching {words}", file=sys.stderr, flush=True)
        self._answer(splits)

    def _compare(self, rows: list[ReplicaDigest]) -> None:
        """Compare what this rank holds with what the others do, in one exchange or in two."""
        assert self._link is not None
        words = self._summary(rows)
        batch = self._batch.intdigest() >> 1
        received = self._link.gather_words([batch, *words], self.steps)
        shared = self._shared_batches([words[0] for words in received])
        summaries: dict[int, set[tuple[int, ...]]] = defaultdict(set)
        for _, *of_teams in received:
            for place in range(0, len(of_teams), WORDS_OF_TEAM):
                team, *summary = of_teams[place : place + WORDS_OF_TEAM]
                summaries[team].add(tuple(summary))
        splits: list[Split] = []
        if any(len(different) > 1 for different in summaries.values()):
            of_ranks = self._link.gather(rows, self.steps)
            teams = of_holders(self._teams, of_ranks)
            splits = splits_of(of_ranks, teams)
            self._keep_teams(teams, splits)
        self._answer([*shared, *splits])

    def _summary(self, rows: Iterable[ReplicaDigest]) -> list[int]:
        """Return the words that say all of what this rank holds, of each of its teams."""
        digests = {team: xxhash.xxh3_128() for team in sorted({*self._own_teams.values()})}
        for row in rows:
            if row.owner in self._own_teams:
                digests[self._own_teams[row.owner]].update("\0".join(row).encode())
        words = []
        for team, digest in digests.items():
            total = digest.intdigest()
            name = xxhash.xxh3_64_intdigest(repr(team).encode())
            words += [number >> 1 for number in (name, total >> 64, total % (1 << 64))]
        return words + [0] * (WORDS_OF_TEAM * self._most_teams - len(words))

    def _shared_batches(self, batches: list[int]) -> list[Split]:
        """Return which ranks have the same batch and had others in the first comparison."""
        nothing = xxhash.xxh3_64().intdigest() >> 1
        if nothing in batches:
            return []
        sharing: dict[int, list[int]] = defaultdict(list)
        for rank, batch in enumerate(batches):
            sharing[batch].append(rank)
        # At first, ranks of tensor parallelism share them, as many each.
        alike = len({len(ranks) for ranks in sharing.values()}) == 1
        before = self._batches or (batches if alike else [*range(len(batches))])
        self._batches = before
        shared = [
            Split(BATCH, "inputs", tuple(ranks))
            for ranks in sharing.values()
            if len({before[rank] for rank in ranks}) > 1
        ]
        for split in shared:  # said once
            for rank in split.ranks:
                before[rank] = before[split.ranks[0]]
        return shared

    def _keep_teams(self, teams: Mapping[str, Sequence[Team]], splits: Iterable[Split]) -> None:
        """Compare these teams from here on, without the ranks that have deviated."""
        assert self._link is not None
        self._teams = without(teams, {rank for split in splits for rank in split.ranks})
        each = {*chain.from_iterable(self._teams.values())}
        self._most_teams = max(Counter(chain.from_iterable(each)).values(), default=0)
        self._own_teams = {
            owner: team
            for owner, of_owner in self._teams.items()
            for team in of_owner
            if self._link.rank in team
        }

    def _answer(self, splits: Iterable[Split]) -> None:
        assert self._link is not None
        places = self._link.places
        mismatches = [
            Mismatch(
                self.steps,
                split.kind,
                split.name,
                tuple(places[rank] for rank in split.ranks),
                split.others,
            )
            for split in splits
        ]
        answer(self._on_mismatch, mismatches, speaks=self._link.rank == 0)
