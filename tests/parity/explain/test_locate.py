"""Locate: the first difference as plain data, with both values at one place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_precision import Observation, Span, close, whole
from pytest_precision.parity.compare.bounds import Bitwise
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.compare.divergences import finding_of
from pytest_precision.parity.compare.pairs import align
from pytest_precision.parity.explain.diagnosis import diagnose_tensor
from pytest_precision.parity.explain.locate import (
    divergence_of,
    failed_at,
    histogram_of,
    what_differs,
)
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]

STEP = Moment(3, "train", 2, "optimizer_step")
NAN = float("nan")


@pytest.fixture
def find(write_trace: Write) -> Callable[..., Finding]:
    """The difference of one tensor of two ranks, None for a side that lacks it."""

    def find(ours: Any, theirs: Any, *, digests: bool = False) -> Finding:
        def ranks(values: Any) -> list[Any]:
            if values is None:
                return [[(STEP, [])], [(STEP, [])]]
            if not isinstance(values, tuple):
                return [[(STEP, [whole("param", "w", values)])]] * 2
            halves = [
                Observation("param", "w", half, (4,), Span(2 * n, 2 * n + 2))
                for n, half in enumerate(values)
            ]
            return [[(STEP, [half])] for half in halves]

        sides = (write_trace(*ranks(values), digests=digests) for values in (ours, theirs))
        (pair,) = align(*sides, (STEP, STEP))
        finding = finding_of(pair, Bitwise())
        assert finding is not None
        return finding

    return find


def test_values_are_located_at_their_first_element(find: Callable[..., Finding]) -> None:
    """With its rank, and with how far the whole tensor is off."""
    halves = torch.tensor([1.0, 1.0]), torch.tensor([2.0, 3.0])
    divergence = divergence_of(diagnose_tensor(find(halves, torch.ones(4))))
    assert (divergence.op, divergence.step, divergence.phase) == (3, 2, "optimizer_step")
    assert (divergence.kind, divergence.name) == ("param", "w")
    assert (divergence.rank, divergence.index) == (1, (2,))
    assert (divergence.candidate, divergence.reference) == (2.0, 1.0)
    assert (divergence.ulp, divergence.mismatched) == (3 * 2**22, 0.5)
    assert divergence.rel_l2 == pytest.approx((1 + 4) ** 0.5 / 2)
    assert (divergence.signature, divergence.error) == ("values", "")
    assert divergence.evidence == {"looked_at": 1, "likewise": []}


def test_a_share_counts_all_that_differs(write_trace: Write) -> None:
    """Also elements within the criterion, of a tensor in which one is beyond it."""
    ours, theirs = (
        write_trace([(STEP, [whole("param", "w", torch.tensor(values))])])
        for values in ([1.0, 1.25, 3.0, 1.0], [1.0, 1.0, 1.0, 1.0])
    )
    (pair,) = align(ours, theirs, (STEP, STEP))
    finding = finding_of(pair, close(rtol=0, atol=0.5))
    assert finding is not None
    divergence = divergence_of(diagnose_tensor(finding))
    assert (divergence.index, divergence.mismatched) == ((2,), 0.5)


def test_a_rank_that_lacks_a_tensor_of_its_own_is_named(write_trace: Write) -> None:
    """Where each rank has one, it is that of the rank which lacks it."""
    gradient = whole("grad", "w", torch.ones(2), local=True)
    theirs = write_trace([(STEP, [gradient])], [(STEP, [gradient])])
    ours = write_trace([(STEP, [gradient])], [(STEP, [])])
    _, lacking = align(ours, theirs, (STEP, STEP))
    finding = finding_of(lacking, Bitwise())
    assert finding is not None
    assert divergence_of(diagnose_tensor(finding)).rank == 1


def test_a_replica_is_on_no_rank_alone(find: Callable[..., Finding]) -> None:
    """Every rank holds the element."""
    assert divergence_of(diagnose_tensor(find(torch.zeros(2), torch.ones(2)))).rank is None


def test_a_nan_has_a_share_and_no_distance(find: Callable[..., Finding]) -> None:
    """Nothing but NaN differs, so that there is no error to measure."""
    divergence = divergence_of(diagnose_tensor(find(torch.tensor([1.0, NAN]), torch.ones(2))))
    assert (divergence.ulp, divergence.rel_l2, divergence.mismatched) == (None, None, 0.5)
    assert divergence.error == "not finite"


@pytest.mark.parametrize(
    ("ours", "theirs", "candidate", "reference"),
    [
        (torch.ones(2).double(), torch.ones(2), "float64", "float32"),
        (torch.ones(2, 2), torch.ones(2), "[2, 2]", "[2]"),
        (None, torch.ones(2), "absent", "present"),
        (torch.ones(2), None, "present", "absent"),
    ],
    ids=["dtype", "shape", "missing", "extra"],
)
def test_where_no_element_is_to_blame_a_property_is(
    find: Callable[..., Finding], ours: Any, theirs: Any, candidate: str, reference: str
) -> None:
    """Both sides' dtype or shape, or which of them has the tensor at all."""
    finding = find(ours, theirs)
    divergence = divergence_of(diagnose_tensor(finding))
    assert (divergence.candidate, divergence.reference) == (candidate, reference)
    assert (divergence.index, divergence.mismatched, divergence.error) == (
        None,
        None,
        finding.problem,
    )
    assert histogram_of(finding) is None


def test_another_dtype_with_other_values_has_a_place(find: Callable[..., Finding]) -> None:
    """The dtype is what is wrong, and the values tell how the difference spreads."""
    finding = find(torch.tensor([1.0, 3.0]).bfloat16(), torch.tensor([1.0, 2.0]))
    divergence = divergence_of(diagnose_tensor(finding))
    assert (divergence.index, divergence.candidate, divergence.reference) == ((1,), 3.0, 2.0)
    assert divergence.error == "dtype"
    assert histogram_of(finding) is not None


def test_digests_that_differ_have_no_place(find: Callable[..., Finding]) -> None:
    """Nobody knows where."""
    finding = find(torch.ones(32), torch.zeros(32), digests=True)
    divergence = divergence_of(diagnose_tensor(finding))
    assert (divergence.index, divergence.candidate, divergence.reference) == (None, None, None)
    assert histogram_of(finding) is None


def test_a_failure_has_its_tensor_its_words_and_its_histogram(
    find: Callable[..., Finding],
) -> None:
    """As for a race, where one tensor is all that is looked at."""
    finding = find(torch.tensor([1.0, 1 + 2**-22]), torch.ones(2))
    assert what_differs(finding) == "param of w differs at step 2 after optimizer_step"
    ruling = failed_at(finding, "race", ["a line"])
    assert (ruling.outcome, ruling.reason, ruling.details) == ("fail", "race", ("a line",))
    assert ruling.divergence == divergence_of(diagnose_tensor(finding))
    assert ruling.culprit is None
    assert ruling.figures["histogram"] == {"by_bits": [1, 0, 1], "nan": 0, "infinite": 0}
