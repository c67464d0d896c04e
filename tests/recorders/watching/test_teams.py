"""Which ranks must hold equal bits, and which of them deviate, from digests alone."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from pytest_precision.recorders.watching.teams import (
    OPTIMIZER_STATE,
    ReplicaDigest,
    ReplicaStart,
    Split,
    of_holders,
    split_of,
    splits_of,
    teams_at_start,
    without,
)

ALL = (0, 1, 2, 3)
HALVES = [(0, 1), (2, 3)]


def weights(name: str, digests: str, *, constant: bool = False) -> list[ReplicaStart]:
    """Return what each rank holds of a plain weight; a dot is a rank without it."""
    return [
        ReplicaStart(ReplicaDigest("param", name, name, digest), constant=constant, is_weight=True)
        for digest in digests
    ]


def starts(*tensors: Sequence[ReplicaStart]) -> list[list[ReplicaStart]]:
    """Return what each rank holds, of all it holds."""
    return [
        [start for start in of_rank if start.row.digest != "."]
        for of_rank in zip(*tensors, strict=True)
    ]


def both(owner: str, teams: list[tuple[int, ...]]) -> dict[str, list[tuple[int, ...]]]:
    """Return the teams of a tensor, and of an optimizer's state of it."""
    return {owner: teams, owner + OPTIMIZER_STATE: teams}


@pytest.mark.parametrize(
    ("digests", "teams"),
    [
        ("aaaa", [ALL]),
        ("aabb", HALVES),
        ("abcd", [(0,), (1,), (2,), (3,)]),
        (".a.a", [(1, 3)]),
    ],
)
def test_equal_at_the_start_is_a_team(digests: str, teams: list[tuple[int, ...]]) -> None:
    """Stages and ranks that draw for themselves are teams of their own, and no defect."""
    assert teams_at_start(starts(weights("w", digests))) == (both("w", teams), [])


def test_few_against_many_began_with_a_defect() -> None:
    """They are named, and compared no more."""
    teams, splits = teams_at_start(starts(weights("w", "aaba"), weights("v", "cccc")))
    assert splits == [Split("param", "w", (2,), (0, 1, 3))]
    assert teams == both("w", [(0, 1, 3)]) | both("v", [(0, 1, 3)])


@pytest.mark.parametrize(
    ("digests", "teams"), [("aaaa", [ALL]), ("aabb", HALVES), ("aaba", []), ("abbc", [])]
)
def test_a_buffer_may_differ_at_the_start(digests: str, teams: list[tuple[int, ...]]) -> None:
    """A statistic is of each rank's own batch, and two may be equal by chance, which is no team."""
    buffers = [
        ReplicaStart(ReplicaDigest("buffer", "b", "b", digest), may_differ=True)
        for digest in digests
    ]
    assert teams_at_start(starts(buffers)) == (both("b", teams), [])


@pytest.mark.parametrize(("digests", "teams"), [("aabb", HALVES), ("aaaa", [ALL])])
def test_zeros_are_no_team_by_themselves(digests: str, teams: list[tuple[int, ...]]) -> None:
    """Two stages have biases of zeros: those of ranks that agree in all else are compared."""
    bias = weights("bias", "0000", constant=True)
    assert teams_at_start(starts(weights("w", digests), bias))[0]["bias"] == teams


def test_a_mesh_says_who_holds_zeros_alike() -> None:
    """Ranks of one mesh, and ranks of two that hold the same part of a model."""
    split = [
        ReplicaStart(
            ReplicaDigest("param", "w", f"w{rank % 2}", f"{rank % 2}"),
            mesh=HALVES[rank // 2],
            is_weight=True,
        )
        for rank in ALL
    ]
    ones = [
        ReplicaStart(
            ReplicaDigest("param", "norm", "norm", "1"),
            HALVES[rank // 2],
            constant=True,
            is_weight=True,
        )
        for rank in ALL
    ]
    teams, splits = teams_at_start(starts(split, ones))
    assert (teams["norm"], teams["w0"], splits) == ([ALL], [(0, 2)], [])


def test_a_mesh_whose_ranks_begin_apart_is_a_defect() -> None:
    """Though as many ranks hold the one as the other."""
    apart = [ReplicaStart(ReplicaDigest("param", "w", "w", digest), HALVES[0]) for digest in "ab"]
    assert teams_at_start(starts(apart))[1] == [Split("param", "w", (0, 1))]


def test_without_a_majority_all_are_named() -> None:
    """Of two ranks, nobody can say which one is wrong."""
    assert split_of("param", "w", {0: "a", 3: "b"}) == Split("param", "w", (0, 3))
    assert split_of("param", "w", {0: "a", 1: "b", 2: "b"}) == Split("param", "w", (0,), (1, 2))
    assert split_of("param", "w", {0: "a", 1: "a"}) is None


def test_the_earliest_cause_of_each_rank_is_named() -> None:
    """A gradient before the moment and the weight that it has moved; an absent one counts."""
    kinds = ("param", "exp_avg", "final_grad")
    rows = [[ReplicaDigest(kind, "w", "w", "a") for kind in kinds] for _ in ALL]
    rows[2] = [ReplicaDigest(kind, "w", "w", "b") for kind in kinds]
    rows[1] = [ReplicaDigest(kind, "w", "w", "a") for kind in kinds[:2]]
    assert splits_of(rows, {"w": [ALL]}) == [Split("final_grad", "w", ALL)]
    rows[1] = rows[0]
    assert splits_of(rows, {"w": [ALL]}) == [Split("final_grad", "w", (2,), (0, 1, 3))]
    assert splits_of(rows, without({"w": [ALL]}, {2})) == []
    assert without({"w": HALVES}, {2}) == {"w": [(0, 1)]}


def test_state_is_compared_where_it_is() -> None:
    """Ranks that share an optimizer's state each have that of some weights."""
    state = [ReplicaDigest("exp_avg", "w", "w" + OPTIMIZER_STATE, digest) for digest in "aab"]
    rows = [[ReplicaDigest("param", "w", "w", "a"), row] for row in state] + [
        [ReplicaDigest("param", "w", "w", "a")]
    ]
    teams = of_holders(both("w", [ALL]), rows)
    assert teams == {"w": [ALL], "w" + OPTIMIZER_STATE: [(0, 1, 2)]}
    assert splits_of(rows, teams) == [Split("exp_avg", "w", (2,), (0, 1))]
