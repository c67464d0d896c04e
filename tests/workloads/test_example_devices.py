"""Workloads that users copy make models and data on the device of the cell, as they have to."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from textwrap import dedent
from typing import Any

import pytest
import torch
from documents import PAGES, ROOT, blocks

from pytest_precision import Cell, Workload
from pytest_precision._torch.dispatch import tree_leaves

EXAMPLES = ROOT / "fixtures" / "downstream"


def defined_in(names: Mapping[str, Any], module: str) -> Iterator[type[Workload]]:
    """Yield the workloads that a module defines itself."""
    for value in names.values():
        if isinstance(value, type) and issubclass(value, Workload) and value.__module__ == module:
            yield value


def of_examples() -> Iterator[type[Workload]]:
    """Yield the workloads of the example suite; its modules are forgotten again."""
    before = set(sys.modules)
    sys.path.insert(0, str(EXAMPLES))
    try:
        for file in sorted(EXAMPLES.glob("test_*.py")):
            yield from defined_in(vars(import_module(file.stem)), file.stem)
    finally:
        sys.path.remove(str(EXAMPLES))
        for name in {file.stem for file in EXAMPLES.glob("*.py")} - before:
            sys.modules.pop(name, None)


def of_pages() -> Iterator[type[Workload]]:
    """Yield the workloads in what pages have readers write, and in the help of `Workload`."""
    example = inspect.getdoc(Workload) or ""
    start = example.index("    class Classifier(Workload)")
    texts = [dedent(example[start : example.index("\nThis example works")])]
    texts += [
        block.text
        for page in PAGES
        for block in blocks(page)
        if block.language == "python" and not block.mark and "def microbatches" in block.text
    ]
    for number, text in enumerate(texts):
        names = {"__name__": f"page{number}", "torch": torch, "Workload": Workload}
        exec(text, names)
        yield from defined_in(names, f"page{number}")


@pytest.mark.parametrize(("found", "least"), [(of_examples, 3), (of_pages, 3)])
def test_everything_is_on_the_device_of_the_cell(found: Any, least: int) -> None:
    """A generator draws on the CPU; a model or data that stay there fail on every GPU."""
    cell = Cell("bf16", device="meta")
    devices = {}
    for workload in found():
        name = f"{workload.__module__}.{workload.__name__}"
        made = workload()
        model = made.model(cell)
        held = [*model.parameters(), *model.buffers()]
        held += tree_leaves([list(made.microbatches(cell, step)) for step in (1, 2)])
        devices[name] = {one.device.type for one in held if isinstance(one, torch.Tensor)}
    assert len(devices) >= least
    assert devices == {name: {"meta"} for name in devices}
