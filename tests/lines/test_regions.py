"""A compiled region is one operation, unless its backend runs those of torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from logged_blocks import culprit_between, operations
from torch import Tensor

from pytest_precision.parity.culprit import Culprit
from pytest_precision.probes.lines.operations import REGION, OperationLog

Function = Callable[[Tensor, Tensor], Tensor]


def right(inputs: Tensor, weight: Tensor) -> Tensor:
    """Products alone, for which Inductor has no kernel to compile."""
    return inputs @ weight @ weight


def wrong(inputs: Tensor, weight: Tensor) -> Tensor:
    """One of the products is of another value."""
    return inputs @ weight.t() @ weight


DEFINITION = inspect.getsourcelines(wrong)[1]
"""The line that torch gives all that it has compiled of a function."""

LINE = DEFINITION + 2


def logged(function: Function) -> OperationLog:
    """Log a forward and a backward."""
    weight = torch.arange(16.0).reshape(4, 4).requires_grad_()
    with operations() as logger:
        inputs = torch.arange(12.0).reshape(3, 4)
        function(inputs, weight).backward(inputs)  # type: ignore[no-untyped-call]
    return logger.log


def compiled(function: Function, backend: str) -> OperationLog:
    """Log a function that is compiled while it is logged."""

    def call(inputs: Tensor, weight: Tensor) -> Tensor:
        made: Function = torch.compile(function, backend=backend)
        return made(inputs, weight)

    torch.compiler.reset()
    return logged(call)


def culprit(candidate: OperationLog, reference: OperationLog, line: int) -> Culprit:
    """Return what is named, which has to be at a line of this file."""
    found = culprit_between(candidate, reference)
    assert (found.file, found.line) == (str(Path(__file__).relative_to(Path.cwd())), line)
    return found


def test_a_region_is_logged_as_one_operation() -> None:
    """In forward and backward; torch is afterwards as it was before."""
    before = torch.compile
    log = compiled(right, "inductor")
    assert torch.compile is before
    assert [one.backward for one in log.operations if one.name == REGION] == [False, True]
    assert not {"mm", "clone"} & {one.base for one in log.operations}
    assert any(one.base == "mm" for one in logged(right).operations)


def test_a_wrong_region_is_named_as_one_operation() -> None:
    """What it does inside is not known, and the text says how it can be."""
    found = culprit(compiled(wrong, "inductor"), logged(right), DEFINITION)
    assert found.operation == REGION
    assert "a compiled region, which is counted as one operation," in found.text
    assert 'backend="aot_eager"' in found.text


def test_a_region_of_the_reference_is_said_to_be_one() -> None:
    """Where the wrong operation is known, and the right one lies in a region."""
    found = culprit(logged(wrong), compiled(right, "inductor"), LINE)
    assert (found.operation, found.kind) == ("aten.mm.default", "extra")
    assert "which a compiled region, which is counted as one operation," in found.text


def test_a_module_that_is_compiled_is_logged() -> None:
    """The compiler traces the hooks that follow modules, too."""
    model = torch.compile(torch.nn.Sequential(torch.nn.Linear(4, 4)), backend="aot_eager")
    log = logged(lambda inputs, weight: model(inputs) @ weight)
    assert [one.base for one in log.operations if not one.backward][1:] == ["addmm", "mm"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_operations_of_other_backends_are_named(backend: str) -> None:
    """They run what torch runs, each as an operation of its own."""
    found = culprit(compiled(wrong, backend), logged(right), DEFINITION)
    assert found.operation == "aten.mm.default"
    assert "a compiled region" not in found.text
