"""What a user's own workload has to define, and how the names are found."""

from __future__ import annotations

from functools import partial
from inspect import cleandoc
from textwrap import dedent
from typing import Any

import pytest
import torch

from pytest_precision import Cell, Workload, workloads


@pytest.fixture
def documented() -> type[Workload]:
    """The example of `Workload`'s docstring."""
    paragraphs = cleandoc(Workload.__doc__ or "").split("\n\n")
    example = "\n\n".join(text for text in paragraphs if text.startswith("    "))
    names: dict[str, Any] = {"Workload": Workload, "torch": torch}
    exec(dedent(example), names)
    return names["Classifier"]


def test_documented_example_trains(documented: type[Workload]) -> None:
    """The example in the docstring is a workload as it stands."""
    workload = documented()
    model = workload.model(Cell())
    optimizer = torch.optim.AdamW(workload.groups(model))
    for microbatch in workload.microbatches(Cell(), 1):
        loss, tokens = workload.loss(model, microbatch)
        assert tokens == workload.tokens(microbatch)
        loss.backward()
    optimizer.step()
    assert workload.max_norm == 0.1


def test_defaults_change_nothing() -> None:
    """A workload that says nothing about clipping or the learning rate has neither changed."""
    assert Workload.max_norm is None
    assert Workload.scheduler(workloads.mlp(), torch.optim.SGD([torch.ones(1)])) is None


@pytest.mark.parametrize("missing", ["model", "groups", "microbatches", "tokens", "loss"])
def test_incomplete_workload_is_refused(documented: type[Workload], missing: str) -> None:
    """A workload without one of the five methods cannot be made; the message names it."""
    incomplete = type("Incomplete", (documented,), {missing: getattr(Workload, missing)})
    with pytest.raises(TypeError, match=missing):
        incomplete()


@pytest.mark.parametrize(
    ("make", "blocks"),
    [
        (partial(workloads.mlp, depth=5), 5),
        (partial(workloads.gpt, depth=1), 1),
        (partial(workloads.moe, depth=3, experts=7), 3),
    ],
)
def test_depth_is_the_number_of_blocks(make: partial[Workload], blocks: int) -> None:
    """`model.blocks` is the list that a layout shards block by block."""
    model = make().model(Cell())
    assert isinstance(model.blocks, torch.nn.ModuleList)
    assert len(model.blocks) == blocks


@pytest.mark.parametrize("make", [workloads.mlp, workloads.gpt, workloads.moe])
def test_seed_changes_the_data(make: type[Workload]) -> None:
    """Another seed is other data in the first step; the learning rate is an argument too."""
    first, other = (make(seed=seed, lr=0.5).microbatches(Cell(), 1)[0] for seed in (0, 1))
    assert first.inputs.shape != other.inputs.shape or not torch.equal(first.inputs, other.inputs)
    assert make(lr=0.5).groups(make().model(Cell()))[0]["lr"] == 0.5


def test_unknown_name_is_refused() -> None:
    """A misspelt workload is an AttributeError that lists what there is."""
    with pytest.raises(AttributeError, match=r"'bert'.*Workload, gpt, mlp, moe"):
        workloads.bert  # noqa: B018
    assert set(workloads.__all__) <= set(dir(workloads))
