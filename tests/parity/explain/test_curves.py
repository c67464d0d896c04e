"""Curves: a loss, a norm and a share of lost updates per step, and words where rounding loses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import pytest
import torch

from pytest_precision import Cell, Observation, Span, whole
from pytest_precision.probes.lost_updates import curves
from pytest_precision.probes.lost_updates.update_log import Counts, UpdateLog
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.recording import Recording

Write = Callable[..., Trace]

FORWARD = Moment(0, "train", 1, "forward_backward")


class Sides(NamedTuple):
    """What a table is made of."""

    sides: Sequence[Recording]


class Logged(NamedTuple):
    """A run of which its updates alone are asked for."""

    updates: UpdateLog

    def log(self, kind: type[UpdateLog]) -> UpdateLog:
        """Return the log of updates."""
        return self.updates


EXACT = Counts(updates=100, size=10.0, exact=4.0)


def lost(number: int, size: float = 0.0, error: float = 0.0) -> Counts:
    """The counts of a tensor that lost `number` of 100 updates, and `size` of their sum of 10."""
    return Counts(100, number, 10.0, size, 4.0, error)


def log(*steps: Mapping[str, Counts], **unmeasured: str) -> UpdateLog:
    return UpdateLog(dict(enumerate(steps, start=1)), unmeasured)


def number(kind: str, *values: float, name: str = "all") -> Observation:
    return whole(kind, name, torch.tensor(values))


def test_a_summary_says_all_tensors_and_the_worst() -> None:
    """The shares add up over steps; the worst tensor is that of the largest share by number."""
    body = lost(10, 5.0)
    steps = {"head": lost(50, 1.0, 1.0), "body": body}, {"head": lost(70, 2.0, 1.0), "body": body}
    summary = curves.summary(log(*steps, norm="it is sharded"))
    assert summary == {
        "share": 140 / 400,
        "share_by_size": 13 / 40,
        "absorbed": (2 / 16) ** 0.5,
        "worst": {"name": "head", "share": 0.6, "share_by_size": 0.15, "absorbed": 0.5},
        "unmeasured": {"norm": "it is sharded"},
    }


def test_a_summary_without_an_update_has_the_reasons_alone() -> None:
    """No share of nothing is shown."""
    assert curves.summary(log(norm="it is sharded")) == {"unmeasured": {"norm": "it is sharded"}}


@pytest.fixture
def recording(write_trace: Write) -> Callable[..., Recording]:
    """A side with a trace and, per step, how many of 10 updates of `w` were lost."""

    def recording(name: str, *ranks: object, lost_of_10: Mapping[int, int]) -> Recording:
        trace = write_trace(*ranks)
        steps = [(step, [[0, 10, n, 1.0, 0.5, 4.0, 1.0]]) for step, n in lost_of_10.items()]
        for rank in range(len(ranks)):
            data = {"unmeasured": {}, "pieces": [["w", f"part {rank}"]], "steps": steps}
            UpdateLog.store(trace.folder, rank, data)
        return Recording(name, Cell(world_size=len(ranks)), trace)

    return recording


def test_a_table_has_a_row_per_step_of_either_run(recording: Callable[..., Recording]) -> None:
    """What a run lacks in a step is None, and not left out of the column."""
    second = FORWARD._replace(op=1, step=2)
    long = [(FORWARD, [number("loss", 2.0)]), (second, [number("loss", 1.5)])]
    long.append((second._replace(phase="clip_grads"), [number("grad_norm", 3.0)]))
    sides = (
        recording("candidate", long, lost_of_10={1: 4, 2: 5}),
        recording("reference", long[:1], lost_of_10={1: 0}),
    )
    assert curves.curves_of_runs(Sides(sides)) == {
        "step": [1, 2],
        "loss": {"candidate": [2.0, 1.5], "reference": [2.0, None]},
        "grad_norm": {"candidate": [None, 3.0], "reference": [None, None]},
        "lost_updates": {"candidate": [0.4, 0.5], "reference": [0.0, None]},
        "absorbed": {"candidate": [0.5, 0.5], "reference": [0.5, None]},
    }


def test_a_loss_is_the_sum_of_its_microbatches_in_training_alone(
    recording: Callable[..., Recording],
) -> None:
    """An evaluation of the same step has a loss and a norm that belong to no curve."""
    evaluation = Moment(1, "eval", 1, "evaluate")
    steps = [
        (INIT, [number("grad_norm", 9.0)]),
        (FORWARD, [number("loss", 1.0, 2.0), number("loss", 4.0, name="microbatch1")]),
        (FORWARD._replace(phase="clip_grads"), [number("grad_norm", 3.0)]),
        (FORWARD._replace(phase="optimizer_step"), [number("grad_norm", 5.0), number("loss", 9.0)]),
        (evaluation, [number("loss", 8.0), number("grad_norm", 8.0)]),
    ]
    table = curves.curves_of_runs(Sides([recording("candidate", steps, lost_of_10={})]))
    assert (table["step"], table["loss"]) == ([1], {"candidate": [7.0]})
    assert table["grad_norm"] == {"candidate": [3.0]}  # the first one, before it is clipped
    assert table["lost_updates"] == {"candidate": [None]}


def test_a_loss_that_ranks_share_counts_once(recording: Callable[..., Recording]) -> None:
    """What each rank has of its own, and what lies at another place, counts for each of them."""

    def loss(rank: int, way: str) -> list[tuple[Moment, list[Observation]]]:
        observation = whole("loss", "all", torch.tensor([1.0, 2.0]), local=way == "local")
        if way == "parts":
            part = torch.tensor([1.0 + rank])
            observation = Observation("loss", "all", part, (2,), Span(rank, rank + 1))
        return [(FORWARD, [observation])]

    for way, expected in (("shared", 3.0), ("parts", 3.0), ("local", 6.0)):
        side = recording("candidate", loss(0, way), loss(1, way), lost_of_10={})
        assert curves.curves_of_runs(Sides([side]))["loss"] == {"candidate": [expected]}, way


@pytest.mark.parametrize(
    ("ours", "theirs", "lines"),
    [
        ({"head": lost(40), "body": lost(3)}, {"head": lost(3), "body": lost(90)}, "(3 %)"),
        ({"head": lost(40)}, {"body": lost(1)}, "(not measured)"),
        ({"head": lost(40)}, {"head": Counts()}, "(0 %)"),
        ({"head": lost(40)}, {"head": lost(40)}, ""),
        ({"head": lost(40)}, {"head": lost(60)}, ""),
        ({"head": Counts(1000, 404)}, {"head": lost(40)}, ""),
        ({"head": Counts(1000, 4)}, {}, ""),
        ({}, {"head": lost(40)}, ""),
    ],
    ids=["more", "not measured", "no update", "as many", "fewer", "same percent", "few", "none"],
)
def test_lost_updates_are_said_where_the_candidate_loses_more(
    ours: dict[str, Counts], theirs: dict[str, Counts], lines: str
) -> None:
    """What the reference loses, too, is no news, and a part of a percent is none either."""
    reference = lines.strip("()")
    expected = [f"40 % of updates lost in head (reference: {reference})"] if lines else []
    assert curves.lost_lines(Logged(log(ours)), Logged(log(theirs))) == expected


def test_updates_lost_beyond_a_limit_are_said_with_their_step() -> None:
    """By size over the whole run: a tensor that loses most by number may lose little of it."""
    steps = (
        {"many": lost(99, 0.1), "large": lost(1, 1.0)},
        {"large": lost(1, 3.0)},
        {"many": lost(99, 0.1)},
    )
    assert curves.beyond(Logged(log(*steps)), 0.2) is None
    assert curves.beyond(Logged(log(*steps)), 0.199) == (
        "20 % of the updates of large lost by size, over max_lost_updates=0.199; "
        "the most at step 2, 30 %"
    )


def test_an_unmeasured_run_says_why() -> None:
    """A tensor's reason is given first; without one, that there was no update at all."""
    assert curves.unmeasured(Logged(log({"w": EXACT}))) is None
    assert curves.unmeasured(Logged(log({"w": EXACT}, norm="it is sharded"))) == (
        "the updates of norm cannot be measured: it is sharded"
    )
    for empty in (log(), log({"w": Counts()})):
        assert curves.unmeasured(Logged(empty)) == "no update was measured"
