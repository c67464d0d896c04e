"""Decide which ranks must hold equal bits, and which of them deviate.

A team is the ranks that had equal bits of one thing at the start: what was equal must stay equal.
Ranks whose tensors differed then hold things of their own, as stages of a pipeline do and ranks
that draw other numbers. It was a defect, though, if more than half of the ranks agreed, or if the
placements of a DTensor say that ranks of one mesh hold the same part.

A tensor of equal elements, such as a bias of zeros, is equal by chance on ranks that hold different
parts of a model. A team for it are ranks of one mesh, or those that agree in all other weights.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from pytest_precision.engine.kinds import causal_rank

Team = tuple[int, ...]
"""Ranks, in order."""

RankDigests = Sequence["ReplicaDigest"]

OPTIMIZER_STATE = " in an optimizer"
"""Ends the owner of state that an optimizer has of a weight, which some ranks may lack."""


class ReplicaDigest(NamedTuple):
    """The digest of something that a rank holds.

    Attributes:
        kind: see `Observation`.
        name: of the tensor.
        owner: what says which ranks hold it alike: the parameter with its place, of its gradient
            and its moments, too; of all else, the thing itself.
        digest: of its bytes.
    """

    kind: str
    name: str
    owner: str
    digest: str


class ReplicaStart(NamedTuple):
    """What a rank holds at the start, for what says which ranks are a team.

    Attributes:
        row: of it.
        mesh: ranks over which a DTensor lies, which hold equal bits of one place; else empty.
        constant: whether all elements are equal.
        is_weight: whether it is a parameter, by which parts of a model are told apart.
        may_differ: whether any rank may have one of its own, even where most agree.
    """

    row: ReplicaDigest
    mesh: Team = ()
    constant: bool = False
    is_weight: bool = False
    may_differ: bool = False


class Split(NamedTuple):
    """Ranks that hold different bits of what should be equal.

    Attributes:
        kind, name: of it.
        ranks: those that deviate from more than half of the team; all of it where there is no
            such majority.
        others: the majority.
    """

    kind: str
    name: str
    ranks: Team
    others: Team = ()


def split_of(kind: str, name: str, digests: Mapping[int, Hashable]) -> Split | None:
    """Return how ranks differ in one thing; None if they all have the same digest."""
    classes = _classes(digests)
    if len(classes) < 2:
        return None
    largest = max(classes, key=len)
    if 2 * len(largest) <= len(digests):
        return Split(kind, name, tuple(sorted(digests)))
    others = tuple(sorted(digests.keys() - {*largest}))
    return Split(kind, name, others, largest)


def teams_at_start(
    starts: Sequence[Sequence[ReplicaStart]],
) -> tuple[dict[str, list[Team]], list[Split]]:
    """Return the teams of each owner, and how ranks differ that should have begun alike.

    Args:
        starts: what each rank holds.
    """
    owners: dict[str, dict[int, ReplicaStart]] = defaultdict(dict)
    for rank, of_rank in enumerate(starts):
        for start in of_rank:
            owners[start.row.owner][rank] = start
    splits = [split for holders in owners.values() for split in _splits_at_start(holders)]
    deviating = {*chain.from_iterable(split.ranks for split in splits)}
    sound = {
        owner: {rank: start for rank, start in holders.items() if rank not in deviating}
        for owner, holders in owners.items()
    }
    parts = _parts_of_model(sound.values())
    teams = {owner: _teams_of(holders, parts) for owner, holders in sound.items()}
    states = {owner + OPTIMIZER_STATE: of_owner for owner, of_owner in teams.items()}
    return teams | states, in_causal_order(splits)


def splits_of(rows: Sequence[RankDigests], teams: Mapping[str, Sequence[Team]]) -> list[Split]:
    """Return how ranks differ, causes before effects; each rank is in the first split alone.

    Args:
        rows: what each rank holds.
        teams: of each owner.
    """
    digests = _by_rank(rows)
    splits = []
    for (kind, name, owner), by_rank in digests.items():
        for team in teams.get(owner, ()):
            if not by_rank.keys().isdisjoint(team):
                split = split_of(kind, name, {rank: by_rank.get(rank) for rank in team})
                splits += [] if split is None else [split]
    return _first_of_each_rank(in_causal_order(splits))


def of_holders(
    teams: Mapping[str, Sequence[Team]], rows: Sequence[RankDigests]
) -> dict[str, Sequence[Team]]:
    """Return the teams, those for an optimizer's state without ranks that have none.

    Of an optimizer that shares its state among ranks, each has that of some weights.
    """
    holders: dict[str, set[int]] = defaultdict(set)
    for (_, _, owner), by_rank in _by_rank(rows).items():
        holders[owner].update(by_rank)
    return {
        owner: [tuple(rank for rank in team if rank in holders[owner]) for team in of_owner]
        if owner.endswith(OPTIMIZER_STATE)
        else of_owner
        for owner, of_owner in teams.items()
    }


def without(teams: Mapping[str, Sequence[Team]], ranks: Iterable[int]) -> dict[str, list[Team]]:
    """Return the teams without some ranks, and without those of which no two are left."""
    gone = {*ranks}
    smaller = {
        owner: [tuple(rank for rank in team if rank not in gone) for team in of_owner]
        for owner, of_owner in teams.items()
    }
    return {
        owner: [team for team in of_owner if len(team) > 1] for owner, of_owner in smaller.items()
    }


def in_causal_order(splits: Iterable[Split]) -> list[Split]:
    """Return splits with causes before effects: a generator, a gradient, a moment, a weight."""
    return sorted(splits, key=lambda split: -1 if split.kind == "rng" else causal_rank(split.kind))


def _by_rank(rows: Sequence[RankDigests]) -> dict[tuple[str, str, str], dict[int, str]]:
    """Return each digest by rank, by kind, name and owner of the tensor."""
    digests: dict[tuple[str, str, str], dict[int, str]] = defaultdict(dict)
    for rank, of_rank in enumerate(rows):
        for row in of_rank:
            digests[row.kind, row.name, row.owner][rank] = row.digest
    return digests


def _splits_at_start(holders: Mapping[int, ReplicaStart]) -> list[Split]:
    """Return how ranks differ that should have begun alike."""
    start = next(iter(holders.values()))
    meshes: dict[Team, dict[int, str]] = defaultdict(dict)
    for rank, of_rank in holders.items():
        meshes[of_rank.mesh][rank] = of_rank.row.digest
    splits = [split_of(*start.row[:2], meshes[mesh]) for mesh in meshes if mesh]
    among_all = split_of(*start.row[:2], _digests_of(holders))
    if among_all is not None and among_all.others and not start.may_differ:
        splits.append(among_all)
    return _first_of_each_rank(split for split in splits if split is not None)


def _teams_of(holders: Mapping[int, ReplicaStart], parts: Mapping[int, Hashable]) -> list[Team]:
    """Return the ranks that must hold equal bits of one thing."""
    if _equal_by_chance(holders):
        return _teams_by_chance(holders, parts)
    classes = _classes(_digests_of(holders))
    # Some ranks may have begun with equal statistics by chance, but not as many each.
    by_chance = len({*map(len, classes)}) > 1
    return [] if by_chance and any(start.may_differ for start in holders.values()) else classes


def _teams_by_chance(
    holders: Mapping[int, ReplicaStart], parts: Mapping[int, Hashable]
) -> list[Team]:
    """Return the ranks that hold the same part of a model, by a mesh or by all other weights."""
    teams: list[set[int]] = []
    together = [
        *_classes({rank: start.mesh or (rank,) for rank, start in holders.items()}),
        *_classes({rank: parts[rank] for rank in holders}),
    ]
    for ranks in together:
        joined = {*ranks}.union(*(team for team in teams if not team.isdisjoint(ranks)))
        teams = [*(team for team in teams if team.isdisjoint(ranks)), joined]
    return [tuple(sorted(team)) for team in teams]


def _digests_of(holders: Mapping[int, ReplicaStart]) -> dict[int, str]:
    return {rank: start.row.digest for rank, start in holders.items()}


def _equal_by_chance(holders: Mapping[int, ReplicaStart]) -> bool:
    """Return whether ranks may hold equal bits of different parts of a model."""
    digests = {*_digests_of(holders).values()}
    return len(digests) == 1 and all(start.constant for start in holders.values())


def _parts_of_model(owners: Iterable[Mapping[int, ReplicaStart]]) -> dict[int, Hashable]:
    """Return what is equal on ranks that hold the same part of a model, by its weights."""
    parts: dict[int, set[ReplicaDigest]] = defaultdict(set)
    for holders in owners:
        by_chance = _equal_by_chance(holders)
        for rank, start in holders.items():
            parts[rank] |= {start.row} if start.is_weight and not by_chance else set()
    return {rank: frozenset(weights) for rank, weights in parts.items()}


def _first_of_each_rank(splits: Iterable[Split]) -> list[Split]:
    named: set[int] = set()
    first = []
    for split in splits:
        if not named.issuperset(split.ranks):
            named.update(split.ranks)
            first.append(split)
    return first


def _classes(keys: Mapping[int, Hashable]) -> list[Team]:
    """Return the ranks of each key, in order."""
    classes: dict[Hashable, list[int]] = defaultdict(list)
    for rank in sorted(keys):
        classes[keys[rank]].append(rank)
    return [*map(tuple, classes.values())]
