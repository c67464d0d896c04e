"""Models that are compiled in place, `model.compile()`: torch calls no hook in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import unchanged
from checked import Recorded
from torch import nn

from pytest_precision import Cell
from pytest_precision._torch.training import compiled_call
from pytest_precision.recorders.scripts.compiled import ToldCall
from pytest_precision.recorders.scripts.runs import record_script
from pytest_precision.trace.store import Trace


def evaluating(model: nn.Module) -> None:
    """Train, and evaluate after each step."""
    optimizer = unchanged.adamw(model)
    for inputs, targets in unchanged.batches():
        nn.functional.mse_loss(model.train()(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.eval()(inputs)


@pytest.mark.parametrize("part", [lambda model: model, lambda model: model.first])
@pytest.mark.parametrize("given", [False, True])
def test_a_model_that_is_compiled_in_place_is_seen(
    one_rank: None,
    tmp_path: Path,
    part: Callable[[nn.Module], nn.Module],
    given: bool,
) -> None:
    """What a trace has of it is what it has of the eager one, bit for bit."""

    def loop(compiled: bool) -> Callable[..., None]:
        def script(cell, record):  # type: ignore[no-untyped-def]
            torch.manual_seed(0)
            model = unchanged.Net()
            if compiled and given:
                part(model).compile(backend="eager")
            with record(model if given else None):
                if compiled and not given:
                    part(model).compile(backend="eager")
                evaluating(model)

        return script

    seen = []
    for compiled in (False, True):
        folder = tmp_path / str(compiled)
        folder.mkdir()
        record_script(loop(compiled), Cell(sequence="train3"), folder, None)
        trace = Trace(folder, 1)
        seen.append(
            {
                (moment, entry.kind, entry.name, entry.digest)
                for moment in trace.moments
                for entry in trace.entries(moment)
            }
        )
    assert len(seen[0]) > 100
    assert seen[0] == seen[1]


def test_a_compiled_call_is_taken_back(recorded: Recorded) -> None:
    """After the loop, the module calls what torch has compiled, and nobody is told."""
    trained = unchanged.Net()

    def compiling(cell, record):  # type: ignore[no-untyped-def]
        with record():
            trained.compile(backend="eager")
            evaluating(trained)

    recorded(compiling)
    assert callable(compiled_call(trained))
    assert not isinstance(compiled_call(trained), ToldCall)
