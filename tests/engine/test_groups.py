"""Groups: the numbers of an optimizer's groups, by the names of parameters."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_precision.engine import groups


def numbers(group: dict[str, Any]) -> dict[str, float]:
    seen = groups.other_numbers([(group, ["w", "b"])])
    return {one.name: one.tensor.item() for one in seen}


def test_every_parameter_has_the_rate_of_its_group() -> None:
    """Whatever groups they are in, and whether or not the rate is a tensor."""
    named = [({"lr": 0.5}, ["w", "b"]), ({"lr": torch.tensor(0.25)}, ["head"])]
    rates = {one.name: one.tensor.item() for one in groups.rates(named)}
    assert rates == {"w": 0.5, "b": 0.5, "head": 0.25}


def test_numbers_in_containers_are_named_by_their_place() -> None:
    """Both betas count, for every parameter of the group."""
    assert numbers({"params": [], "lr": 1, "betas": (0.9, torch.tensor(0.5))}) == {
        "betas.0 of w": 0.9,
        "betas.0 of b": 0.9,
        "betas.1 of w": 0.5,
        "betas.1 of b": 0.5,
    }


@pytest.mark.parametrize("value", [None, True, torch.tensor(True), "sum", torch.ones(2)], ids=str)
def test_what_is_no_number_is_left_to_the_optimizer(value: Any) -> None:
    """Switches such as `foreach` say how something is computed."""
    assert numbers({"option": value}) == {}
