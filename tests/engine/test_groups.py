"""Groups: the numbers of an optimizer's groups, by the names of parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pytest_precision.engine import groups


def numbers(group: dict[str, Any]) -> dict[str, float]:
    seen = groups.other_numbers([(group, ["w", "b"])])
    return {one.name: one.tensor.item() for one in seen}


def test_every_parameter_has_the_rate_of_its_group() -> None:
    """Whatever groups they are in, and whether or not the rate is a tensor."""
    named = [({"lr": 0.5}, ["w", "b"]), ({"lr": torch.tensor(0.25)}, ["head"])]
    rates = {one.name: one.tensor.item() for one in groups.learning_rates(named)}
    assert rates == {"w": 0.5, "b": 0.5, "head": 0.25}


def test_numbers_in_containers_are_named_by_their_place() -> None:
    """Both betas count, for every parameter of the group."""
    assert numbers({"params": [], "lr": 1, "betas": (0.9, torch.tensor(0.5))}) == {
        "betas.0 of w": 0.9,
        "betas.0 of b": 0.9,
        "betas.1 of w": 0.5,
        "betas.1 of b": 0.5,
    }


def shown(option: Any) -> dict[str, Any]:
    """What is seen of one option, by its path."""
    seen = groups.other_numbers([({"option": option}, ["w"])])
    return {one.name: (one.tensor.dtype, one.tensor.tolist()) for one in seen}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (2**53, 2**53 + 1),
        (torch.tensor(2**53), torch.tensor(2**53 + 1)),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0])),
        ({"warm": 1}, {"warm": 2}),
        (np.float32(0.1), np.float32(0.2)),
        (np.int64(1), np.int64(2)),
        (True, False),
        ("cosine", "linear"),
    ],
    ids=["int", "int64", "tensor", "dict", "numpy.float32", "numpy.int64", "bool", "text"],
)
def test_options_of_every_kind_are_seen(one: Any, other: Any) -> None:
    """Each is there, and none is rounded until it equals another one."""
    assert shown(one)
    assert shown(one) != shown(other)


def test_equal_numbers_are_equal_however_they_are_written() -> None:
    """A decay of 0 is one of 0.0, in Python, numpy or torch."""
    ways = (0, 0.0, np.float64(0.0), torch.tensor(0), torch.zeros(1))
    assert len({repr(shown(way)) for way in ways}) == 1


@pytest.mark.parametrize("name", ["foreach", "fused", "capturable", "differentiable"])
def test_how_an_update_is_computed_is_no_option(name: str) -> None:
    """Two sides may differ in it, since that is what is to be proved harmless."""
    assert [*groups.other_numbers([({name: True}, ["w"])])] == []
