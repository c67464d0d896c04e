"""A constant of another function is told with that function."""

from __future__ import annotations

import torch
from logged_blocks import culprit_between, operations

from pytest_precision.probes.lines.operations import OperationLog


def log_of(factor: float | None) -> OperationLog:
    """Log two updates, after the first of which the loop may scale the weight."""
    weight = torch.nn.Parameter(torch.arange(12.0))
    weight.grad = torch.arange(1.0, 13.0)
    optimizer = torch.optim.AdamW([weight], lr=0.5, weight_decay=0.5)
    with operations() as logger:
        optimizer.step()
        if factor is not None:
            weight.data.mul_(factor)
        optimizer.step()
    return logger.log


def test_a_constant_of_a_library_is_told_with_its_function() -> None:
    """The next update decays the weight, by an operation that is none of this line."""
    found = culprit_between(log_of(1.25), log_of(None))
    assert "the reference multiplied by 0.75 in AdamW.step, the candidate by 1.25" in found.text
