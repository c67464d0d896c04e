"""Which settings count as set otherwise."""

from __future__ import annotations

import pytest

from pytest_precision.probes.lines.explain.user_code import made_by_both, set_otherwise
from pytest_precision.probes.lines.operations import OperationLog, Setting


@pytest.mark.parametrize(
    ("mine", "theirs", "otherwise"),
    [
        ("'Layer_16'", "'Layer_6'", False),  # Transformer Engine counts layers of a process
        ("'tanh'", "'none'", True),
        ("16", "6", True),
        ("(0.9, 0.95)", "(0.9, 0.99)", True),
    ],
)
def test_a_name_with_another_number_is_no_other_setting(
    mine: str, theirs: str, otherwise: bool
) -> None:
    """A number alone is a value, and in a name it is a counter."""
    ours, others = (
        OperationLog(settings=[Setting(0, "name", "blocks.0", value, None)])
        for value in (mine, theirs)
    )
    assert bool([*set_otherwise([ours], [others])]) == otherwise


@pytest.mark.parametrize(
    ("owner", "blamed"), [("group 0", True), ("group 0 of optimizer 1", False)]
)
def test_options_of_an_optimizer_that_a_load_has_made_are_not_compared(
    owner: str, blamed: bool
) -> None:
    """It sets those of the first one again, which the run that goes on has no reason to do."""
    first = Setting(0, "lr", "group 0", "0.1", None)
    ours = OperationLog(settings=[first, Setting(0, "lr", owner, "0.2", None)])
    theirs = OperationLog(settings=[first])
    settings = [*set_otherwise([ours], [theirs])]
    assert len(settings) == 1
    assert bool(made_by_both(settings, [ours], [theirs])) == blamed
