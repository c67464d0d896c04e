"""A log that ends at its limit shows nothing of what comes later, and nothing of that is blamed."""

from __future__ import annotations

from pathlib import Path

import torch

from pytest_precision.parity.culprit import Culprit
from pytest_precision.probes.lines.explain.found import culprit_of
from pytest_precision.probes.lines.explain.unnamed import unnamed
from pytest_precision.probes.lines.log.operation_log import OperationLogger
from pytest_precision.probes.lines.operations import Holding, OperationLog
from pytest_precision.trace.moment import LOGGED_OPERATIONS, LogRequest


def log_of(
    limit: int = LOGGED_OPERATIONS, *, wrong: int = -1, joined: bool = False
) -> OperationLog:
    """Log a product and a sum of ten steps, one of which is wrong, or which are one operation."""
    logger = OperationLogger(LogRequest(0, 1, limit=limit))
    values = torch.arange(12.0).reshape(3, 4) + 0.25
    ones = torch.ones(3, 4)
    with logger.installed():
        logger.give([(Holding("param", "weight"), values)])
        with logger.on():
            for step in range(10):
                factor = 1.25 if step == wrong else 1.5
                if joined:
                    values = torch.add(ones, values, alpha=factor)
                else:
                    values = values * factor
                    values = values + ones
        logger.leave([(Holding("param", "weight"), values)])
    return logger.log


def culprit(candidate: OperationLog, reference: OperationLog) -> Culprit | None:
    return culprit_of([candidate], [reference], Path.cwd(), "param")


def test_nothing_is_blamed_that_comes_after_the_reference_s_log() -> None:
    """The candidate does the same as the reference, whose log has its first four operations."""
    assert culprit(log_of(), log_of(4)) is None


def test_what_comes_before_the_end_of_a_log_is_blamed() -> None:
    """An operation that both logs have shows what it shows in whole logs."""
    found = culprit(log_of(wrong=1), log_of(6))
    assert found is not None
    assert "the reference multiplied by 1.5 here, the candidate by 1.25" in found.text
    assert culprit(log_of(wrong=3), log_of(6)) is None


def test_sides_that_need_fewer_operations_get_there_sooner() -> None:
    """The candidate's fifth operation does what the reference's ninth and tenth do."""
    assert culprit(log_of(joined=True), log_of(8)) is None
    assert culprit(log_of(joined=True, wrong=1), log_of(8)) is not None


def test_a_candidate_whose_log_ends_leaves_nothing_out() -> None:
    """What its log lacks is not missing in the candidate."""
    assert culprit(log_of(4, wrong=3), log_of()) is None


def test_the_limit_is_named() -> None:
    """The line that stands in place of a culprit says at which limit a log ends."""
    words = "the reference's log ends at the limit of 4 operations"
    assert words in unnamed([log_of()], [log_of(4)])
    assert "the first 6 operations made values that" in unnamed([log_of(6)], [log_of()])
