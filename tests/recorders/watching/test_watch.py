"""A watched run names the rank that deviates, in the period in which it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from watched_loops import Plan, train, train_until_ended

from pytest_precision.errors import RankError
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks.needs import Needs

NIGHT = pytest.mark.nightly, pytest.mark.timeout(1200)

Said = Callable[..., list[str]]


@pytest.fixture
def said(resources: Resources) -> Said:
    """Return a function that returns what ranks say of a watched loop, each the same."""
    ranks = resources.ranks(Settings(timeout=1200, device="cpu"))

    def run(*words: str, world_size: int = 4, **plan: object) -> list[str]:
        first, *others = ranks.run(world_size, train, Plan(*words, **plan))
        assert others == [first] * (world_size - 1)
        return list(first)

    return run


@pytest.mark.parametrize(
    ("defect", "wrapper", "words"),
    [
        ("weight", "ddp", "param of 0.weight"),
        ("gradient", "ddp", "final_grad of 0.weight"),
        ("moment", "ddp", "exp_avg of 0.weight"),
        ("seed", "ddp", "rng of cpu"),
        ("rate", "ddp", "lr of param_groups.0.lr"),
        ("noise", "ddp", "param of 0.weight"),
        ("skip", "none", "final_grad of 1.weight"),
        ("stale", "none", "final_grad of 1.weight"),
        ("bias", "tp", "param of 3.bias"),
    ],
)
def test_a_rank_that_deviates_is_named(said: Said, defect: str, wrapper: str, words: str) -> None:
    """With the step and the earliest cause, once, and who agrees."""
    (message,) = said(defect, wrapper=wrapper)
    assert message.startswith(f"step 3: {words} on rank 2 (")
    assert message.endswith("is not that of ranks 0, 1, 3")


def test_where_no_more_than_half_agree_all_are_named(said: Said) -> None:
    """HSDP has two replicas of each shard: of two, nobody can say which one is wrong."""
    (message,) = said("weight", wrapper="hsdp")
    assert message.startswith("step 3: param of 0.weight differs between rank 0 (")
    assert " and rank 2 (" in message


def test_a_replica_in_a_stage_is_compared(said: Said) -> None:
    """With the other one alone: both stages have weights of one name and shape."""
    (message,) = said("weight", wrapper="stages")
    assert message.startswith("step 3: param of 0.weight differs between rank 2 (")
    assert " and rank 3 (" in message


@pytest.mark.parametrize(("at", "step"), [(1, 1), (2, 3), (3, 3), (4, 6)])
def test_a_period_finds_what_was_in_it(said: Said, at: int, step: int) -> None:
    """A weight that deviates stays so; ranks are compared before the first update, too."""
    (message,) = said("weight", at=at, steps=7, every=3)
    assert message.startswith(f"step {step}: ")


@pytest.mark.parametrize("at", [1, 3])
def test_ranks_with_one_batch_are_named(said: Said, at: int) -> None:
    """Both, in the step in which they have it, the first one included."""
    (message,) = said("batch", at=at)
    assert message.startswith(f"step {at}: rank 1 (")
    assert message.endswith("have the same batch")


@pytest.mark.parametrize(
    ("wrapper", "seeds", "steps"),
    [
        ("ddp", False, 200),
        ("ddp", True, 20),
        ("none", False, 20),
        ("hsdp", False, 20),
        ("fsdp2", False, 20),
        ("tp", False, 20),
        ("zero", False, 20),
        ("stages", False, 20),
        ("columns", False, 20),
        ("fsdp1", False, 20),
        pytest.param("ddp", False, 10_000, marks=NIGHT),
        pytest.param("none", True, 10_000, marks=NIGHT),
    ],
)
def test_an_honest_loop_raises_no_alarm(said: Said, wrapper: str, seeds: bool, steps: int) -> None:
    """With dropout, a schedule, statistics of each rank's own batch, equal seeds or others."""
    assert said(wrapper=wrapper, seeds=seeds, steps=steps) == []


def test_a_run_may_end_at_the_mismatch(resources: Resources) -> None:
    """On all ranks, with the message."""
    ranks = resources.ranks(Settings(timeout=120, device="cpu"))
    with pytest.raises(RankError, match=r"step 3: param of 0\.weight on rank 2"):
        ranks.run(4, train, Plan("weight", on_mismatch="raise"))


def test_a_rank_that_does_not_come_is_named(resources: Resources) -> None:
    """By the others, which do not wait without an end."""
    ranks = resources.ranks(Settings(timeout=120, device="cpu"))
    plan = Plan("absent", wrapper="alone")
    messages = ranks.run(4, train_until_ended, plan, needs=Needs(launched=True))
    assert messages[2] == ""
    for message in messages[:2] + messages[3:]:
        assert message.startswith("WatchError: expected all ranks at the comparison after step 3")
        assert "but got none of rank 2 (" in message


@pytest.mark.nightly
def test_a_rank_that_lost_a_collective_does_not_hang(resources: Resources) -> None:
    """The others are in one that it does not make: it says that none of them has come."""
    ranks = resources.ranks(Settings(timeout=120, device="cpu"))
    plan = Plan("lost", wrapper="none")
    messages = ranks.run(4, train_until_ended, plan, needs=Needs(launched=True))
    assert messages[2].startswith("WatchError: expected all ranks at the comparison after step 3")
    assert "none of rank 0 (" in messages[2]
    assert all(messages)
