"""Sums over updates that are computed together."""

from __future__ import annotations

import pytest
import torch

from pytest_precision.probes.lost_updates.update_sums import Rule, Update, sums
from pytest_precision.recorders.weights import IN_CACHE


def update(size: int, rate: float) -> Update:
    """What SGD at a rate makes of a weight in bf16, which loses some of it."""
    before, grad = torch.randn(size).bfloat16(), torch.randn(size) / 100
    rule = Rule((grad,), lambda _, grad: grad.double() * -rate, rate)
    return Update(rule, before, ((before.float() - rate * grad).bfloat16(), grad))


def test_updates_computed_together_have_the_sums_of_each_alone() -> None:
    """Small ones of one rule are one tensor, an empty and a large one too, and rates stay apart."""
    sizes = (3, 400, 0, IN_CACHE - 100, 2 * IN_CACHE + 7, 1)
    updates = [update(size, rate) for size in sizes for rate in (0.1, 0.01)]
    for row, each in zip(sums(updates), updates, strict=True):
        assert row == pytest.approx(sums([each])[0], rel=1e-12)
        assert row[0] == int(each.tensors[1].count_nonzero())
        assert row[1] == int((each.before == each.tensors[0])[each.tensors[1] != 0].sum())


def test_what_is_not_finite_is_left_out_of_its_own_tensor_alone() -> None:
    """The others beside it keep their sums."""
    updates = [update(10, 0.1) for _ in range(3)]
    usual = sums(updates)
    updates[1].tensors[0][4] = torch.inf
    first, second, third = sums(updates)
    assert [first, third] == [usual[0], usual[2]]
    assert second[0] == 9
    assert max(second) < torch.inf
