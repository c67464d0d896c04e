"""What a step decides by the norm of its gradients, and how narrowly."""

from __future__ import annotations

import pytest
import torch

from pytest_precision.engine.decisions import of_step


@pytest.mark.parametrize(
    ("norm", "max_norm", "skipped", "clipped", "margin"),
    [
        (2.0, 0.5, False, True, 3.0),
        (0.25, 0.5, False, False, 0.5),
        (0.5, 0.5, False, False, 0.0),
        (torch.inf, 0.5, True, False, torch.inf),
    ],
)
def test_a_norm_decides_about_clipping_and_the_step(
    norm: float, max_norm: float, *, skipped: bool, clipped: bool, margin: float
) -> None:
    """The margin is relative to the limit; a norm at the limit is not clipped."""
    made = of_step(torch.tensor(norm), max_norm)
    assert bool(made["step is skipped"][0]) is skipped
    assert bool(made["norm is clipped"][0]) is clipped
    assert float(made["norm is clipped"][1]) == margin


def test_without_a_limit_nothing_is_clipped() -> None:
    """There is no such decision then."""
    assert of_step(torch.tensor(1.0), None).keys() == {"step is skipped"}
