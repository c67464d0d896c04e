"""Models that are compiled in place, `model.compile()`: torch calls no hook in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import unchanged
from checked import Recorded
from torch import Tensor, nn

from pytest_precision import Cell
from pytest_precision._torch.training import compiled_call
from pytest_precision.probes.lines.logged_script import log_script
from pytest_precision.probes.lines.operation_files import read_operations
from pytest_precision.recorders.scripts.model_hooks import ToldCall
from pytest_precision.recorders.scripts.script_recorder import record_script
from pytest_precision.recorders.variant import Variant
from pytest_precision.trace.moment import EVERYTHING, LogRequest
from pytest_precision.trace.reader import Trace

NIGHTLY = pytest.mark.nightly


def whole(model: nn.Module) -> nn.Module:
    """Choose all of a model to be compiled."""
    return model


def first(model: Any) -> nn.Module:
    """Choose the first layer of a model to be compiled."""
    layer: nn.Module = model.first
    return layer


def seen_of(script: Callable[..., None], folder: Path) -> set[tuple[object, ...]]:
    """Return what a trace has of a loop: moment, kind, name and bytes of each tensor."""
    folder.mkdir()
    record_script(script, Cell(sequence="train3"), folder, EVERYTHING)
    trace = Trace(folder, 1)
    entries = ((moment, entry) for moment in trace.moments for entry in trace.entries(moment))
    return {(at, e.kind, e.name, bytes_of(trace.tensor(e))) for at, e in entries}


def bytes_of(tensor: Tensor) -> bytes:
    """Return what a tensor holds."""
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def evaluating(model: nn.Module) -> None:
    """Train, and evaluate after each step."""
    optimizer = unchanged.adamw(model)
    for inputs, targets in unchanged.batches():
        nn.functional.mse_loss(model.train()(inputs), targets).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model.eval()(inputs)


@pytest.mark.parametrize(
    ("part", "given", "early"),
    [
        pytest.param(whole, False, False, id="whole found"),
        pytest.param(first, True, True, id="first given early"),
        pytest.param(whole, True, False, id="whole given", marks=NIGHTLY),
        pytest.param(whole, True, True, id="whole given early", marks=NIGHTLY),
        pytest.param(first, False, False, id="first found", marks=NIGHTLY),
        pytest.param(first, True, False, id="first given", marks=NIGHTLY),
    ],
)
def test_a_model_that_is_compiled_in_place_is_seen(
    one_rank: None,
    tmp_path: Path,
    part: Callable[[nn.Module], nn.Module],
    given: bool,
    early: bool,
) -> None:
    """What a trace has of it is what it has of the eager one, whenever it is compiled."""

    def loop(compiled: bool) -> Callable[..., None]:
        def script(cell, record):  # type: ignore[no-untyped-def]
            torch.manual_seed(0)
            model = unchanged.Net()
            if compiled and early:
                part(model).compile(backend="eager")
            with record(model if given else None):
                if compiled and not early:
                    part(model).compile(backend="eager")
                evaluating(model)

        return script

    eager = seen_of(loop(compiled=False), tmp_path / "eager")
    assert len(eager) > 100
    assert seen_of(loop(compiled=True), tmp_path / "compiled") == eager


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


def step_by_step(
    compiled: str, grad_factor: float = 1.0, operations: list[str] | None = None
) -> Callable[..., None]:
    """Return a loop that compiles one of its functions: `clip`, `update` or all of a `step`.

    Args:
        compiled: which of them.
        grad_factor: what all gradients are multiplied by.
        operations: takes the operations that are compiled.
    """

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        if operations is not None:
            operations.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    def script(cell, record):  # type: ignore[no-untyped-def]
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(7, 13), nn.ReLU(), nn.Linear(13, 3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def maybe(function: Callable[..., Any]) -> Callable[..., Any]:
            chosen = function.__name__ == compiled
            return torch.compile(function, backend=backend) if chosen else function

        @maybe
        def clip() -> None:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        @maybe
        def update() -> None:
            optimizer.step()

        @maybe
        def step(inputs: Tensor, targets: Tensor) -> None:
            (grad_factor * nn.functional.mse_loss(model(inputs), targets)).backward()
            clip()
            update()
            optimizer.zero_grad()

        with record(model):
            for batch in unchanged.batches():
                step(*batch)

    return script


@pytest.mark.parametrize(
    "compiled",
    ["step", pytest.param("clip", marks=NIGHTLY), pytest.param("update", marks=NIGHTLY)],
)
def test_a_compiled_function_of_the_loop_is_seen(
    one_rank: None, few_objects: None, tmp_path: Path, compiled: str
) -> None:
    """Its trace has the names and the bits of the eager loop, though no hook runs in its graphs."""
    eager = seen_of(step_by_step(""), tmp_path / "eager")
    shown = {one for one in eager if compiled != "step" or one[1] != "used_param"}
    assert len(shown) > 100
    operations: list[str] = []
    loop = step_by_step(compiled, operations=operations)
    assert seen_of(loop, tmp_path / "compiled") == shown
    made = "_foreach_mul_" if compiled == "clip" else "add_"
    assert any(made in one for one in operations)  # they stay compiled while they are recorded
    wrong = seen_of(step_by_step(compiled, grad_factor=1.01), tmp_path / "wrong")
    assert {one[1] for one in shown - wrong} >= {"loss", "reduced_grad", "grad_norm"}


def test_an_optimizer_stays_compiled_while_lines_are_logged(
    one_rank: None, few_objects: None, tmp_path: Path
) -> None:
    """torch.compile takes no parameter groups that log what is set in them."""
    torch.compiler.reset()  # its limit counts the compiled loops of other tests, too
    operations: list[str] = []
    loop = step_by_step("update", operations=operations)
    log_script(
        loop, Cell(sequence="train2"), tmp_path, EVERYTHING, None, Variant(logged=LogRequest(1, 2))
    )
    assert any("add_" in one for one in operations)
    log = read_operations(tmp_path, 0)
    assert {one.option for one in log.settings} >= {"lr", "momentum"}
