"""Adequacy: what a run never did is said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_precision import Cell, Observation, whole
from pytest_precision.probes.coverage_gaps.gaps import unexercised
from pytest_precision.trace.data_log import DataLog
from pytest_precision.trace.moment import INIT, Moment
from pytest_precision.trace.reader import Trace

Write = Callable[..., Trace]

# A run of two steps that does all that a run can do, and by what it is made poorer.
RICH: dict[str, Any] = {
    "clipped": [True, False],
    "rates": [[0.1, 0.2], [0.2, 0.4]],
    "decay": [0.1, 0.0],
    "losses": [2, 1],
    "tokens": {1: {3, 5}, 2: {4}},
    "start": [1.0, 1 + 2**-20],
    "buffer": True,
    "frozen": True,
    "sequence": "train-save-load-train2",
}


def run(write_trace: Write, **poorer: Any) -> list[str]:
    made = RICH | poorer
    start = torch.tensor(made["start"])
    state = [whole("master", "w", start), whole("param", "w", start)]
    state += [whole("param", "frozen", start)] * made["frozen"]
    state += [whole("buffer", "mean", start)] * made["buffer"]
    state += [
        whole("hyper", f"weight_decay of {name}", torch.tensor(value))
        for name, value in zip("wb", made["decay"], strict=True)
    ]
    recorded = [(INIT, state)]
    for n, (losses, rates) in enumerate(zip(made["losses"], made["rates"], strict=True)):
        step: list[Observation] = [whole("loss", f"{i}", start) for i in range(losses)]
        step += [
            whole("lr", name, torch.tensor(rate)) for name, rate in zip("wb", rates, strict=True)
        ]
        step += [
            whole("decision", "norm is clipped", torch.tensor(made["clipped"][n])),
            whole("reduced_grad", "w", start),
        ]
        recorded.append((Moment(n, "train", n + 1, "optimizer_step"), step))
    cell, data = Cell(sequence=made["sequence"]), DataLog((), (), made["tokens"])
    return unexercised(write_trace(recorded), cell, data)


def test_a_rich_run_leaves_nothing_out(write_trace: Write) -> None:
    """So each line below is due to what is taken away."""
    assert run(write_trace) == []


@pytest.mark.parametrize(
    ("poorer", "words"),
    [
        ({"clipped": [True, True]}, "clipping: active in every step"),
        ({"clipped": [False, False]}, "clipping: active in no step"),
        ({"rates": [[0.1, 0.1], [0.2, 0.2]]}, "learning rates: the same for all parameters"),
        ({"rates": [[0.1, 0.2], [0.1, 0.2]]}, "learning rates: the same in all steps"),
        ({"decay": [0.0, 0.0]}, "weight decay: none"),
        ({"decay": [0.1, 0.1]}, "weight decay: the same for all parameters"),
        (
            {"tokens": {0: {1, 2}, 1: {3}, 2: {4}}},
            "token counts: the same in all microbatches of a step",
        ),
        ({"losses": [1, 1]}, "accumulation: one microbatch a step"),
        ({"start": [1.0, 0.5]}, "weights: all start as numbers of bf16"),
        ({"buffer": False}, "buffers: none"),
        ({"frozen": False}, "frozen parameters: none"),
        ({"sequence": "train2-save-load-train"}, "loads: none before 2 steps"),
        ({"sequence": "train4"}, "loads: none before 2 steps"),
    ],
)
def test_what_is_missing_is_named(write_trace: Write, poorer: dict[str, Any], words: str) -> None:
    """And nothing else."""
    assert run(write_trace, **poorer) == [words]
