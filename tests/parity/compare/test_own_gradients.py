"""Gradients that a sharded optimizer reduces in copies are told from those that nobody reduces."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pytest_precision import Observation, Span, whole
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import Judgement, judge
from pytest_precision.parity.compare.own_gradients import NOT_KNOWN, THEIR_SUM
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]

REDUCED, CLIPPED = (Moment(0, "train", 1, phase) for phase in ("reduce_grads", "clip_grads"))

OWN = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
"""The gradients of two ranks."""


def zero(write_trace: Write, final: Tensor, *, digests: bool = False) -> Trace:
    """Write what two ranks show, each of which reads a half of the gradient `final`."""
    ranks = []
    for rank, half in enumerate(final.split(32)):
        span = Span(32 * rank, 32 * rank + 32)
        read = Observation("final_grad", "w", half.clone(), (64,), span)
        ranks.append([(REDUCED, [whole("reduced_grad", "w", OWN[rank])]), (CLIPPED, [read])])
    return write_trace(*ranks, digests=digests)


def judged(ours: Trace, theirs: Trace) -> Judgement:
    return judge(ours, theirs, Criteria.of(None))


@pytest.mark.parametrize("factor", [1.0, 0.5, 0.01], ids=["sum", "mean", "clipped"])
def test_parts_of_the_sum_are_what_was_reduced(write_trace: Write, factor: float) -> None:
    """What each rank has kept is its own, and is named among what is not compared."""
    trace = zero(write_trace, OWN.sum(0) * factor)
    judgement = judged(trace, trace)
    assert judgement.first is None
    assert judgement.left_out == {"reduced_grad w": THEIR_SUM}


def test_a_small_gradient_may_lie_on_one_rank(write_trace: Write) -> None:
    """The optimizer of this rank reads all of it, and the other rank's none."""
    kept = [(REDUCED, [whole("reduced_grad", "w", own)]) for own in OWN]
    read = (CLIPPED, [whole("final_grad", "w", OWN.sum(0))])
    trace = write_trace([kept[0], (CLIPPED, [])], [kept[1], read])
    judgement = judged(trace, trace)
    assert judgement.first is None
    assert judgement.left_out == {"reduced_grad w": THEIR_SUM}


def test_a_skipped_reduction_stays_a_difference(write_trace: Write) -> None:
    """Each rank updates its part by its own gradient: on both sides, and beside a right one."""
    skipped = torch.cat([OWN[0, :32], OWN[1, 32:]])
    trace = zero(write_trace, skipped)
    judgement = judged(trace, trace)
    assert judgement.first is not None
    assert (judgement.first.problem, judgement.first.pair.kind) == ("replicas", "reduced_grad")
    assert judged(trace, zero(write_trace, OWN.sum(0))).first is not None


def test_a_reduction_of_digests_is_not_known(write_trace: Write) -> None:
    """The parts that the optimizers read are held to the other side's all the same."""
    right = zero(write_trace, OWN.sum(0), digests=True)
    assert judged(right, right).left_out == {"reduced_grad w": NOT_KNOWN}
    wrong = zero(write_trace, OWN.sum(0) + 1, digests=True)
    first = judged(wrong, right).first
    assert first is not None
    assert first.pair.kind == "final_grad"


def test_replicas_of_an_optimizer_must_agree(write_trace: Write) -> None:
    """Where each rank reads the whole gradient, all of them have to have the same."""
    ranks = [
        [(REDUCED, [whole("reduced_grad", "w", own)]), (CLIPPED, [whole("final_grad", "w", own)])]
        for own in OWN
    ]
    trace = write_trace(*ranks)
    first = judged(trace, trace).first
    assert first is not None
    assert (first.problem, first.pair.kind) == ("replicas", "reduced_grad")
