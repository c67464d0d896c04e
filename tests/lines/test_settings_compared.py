"""Which settings count as set otherwise."""

from __future__ import annotations

import pytest

from pytest_precision.probes.lines.explain.user_code import set_otherwise
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
