"""An argument that is empty, or of another type, is refused, and never read as not given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_precision import Cell, Parity, command, layouts, script, workloads

CELL = Cell("fp32", sequence="train1")

GIVEN = {"candidate": layouts.adamw, "reference": layouts.adamw, "workload": workloads.mlp}

WRONG: dict[str, tuple[Any, ...]] = {
    "candidate": ("", None, 0, (), {}),
    "reference": ("", " ", None, 0, (), {}),
    "workload": ("", None, 0, (), {}),
    "criterion": ("", 0, False, ()),
    "reference_cell": ("", 0, False, (), {}),
    "max_lost_updates": ("", False, ()),
    "contract": ("", 0, False, (), {}),
    "oracle": ("", 0, False, ()),
}
"""Each argument of `parity.check` with values that stand for nothing."""


@pytest.mark.parametrize(
    ("argument", "value"),
    [(argument, value) for argument, values in WRONG.items() for value in values],
)
def test_check_refuses_what_stands_for_nothing(
    parity_there: Callable[[Cell], Parity], argument: str, value: object
) -> None:
    """The message names the argument's value and what was expected; nothing is recorded."""
    parity = parity_there(CELL)
    with pytest.raises((TypeError, ValueError), match="expected ") as refused:
        parity.check(**{**GIVEN, argument: value})
    assert repr(value) in str(refused.value)
    assert parity.verdicts == []


def test_a_reference_without_a_name_says_what_may_have_happened(
    parity_there: Callable[[Cell], Parity],
) -> None:
    """With the value, and the next step."""
    words = (
        r"expected a layout, or the name of a baseline but got reference='' \(str\); "
        "a variable in its place may not be set"
    )
    with pytest.raises(ValueError, match=words):
        parity_there(CELL).check(layouts.adamw, "", workload=workloads.mlp)


@pytest.mark.parametrize("sides", [("", "there"), ("here", ""), (None, "there"), ("here", ())])
def test_compare_refuses_what_names_no_folder(
    parity_there: Callable[[Cell], Parity], sides: tuple[Any, Any]
) -> None:
    """An empty name would be the present folder."""
    with pytest.raises((TypeError, ValueError), match="expected the folder of a recording but got"):
        parity_there(CELL).compare(*sides)


@pytest.mark.parametrize("value", ["", 0, None, False])
def test_repeat_refuses_what_is_no_number_of_runs(
    parity_there: Callable[[Cell], Parity], value: Any
) -> None:
    """Neither is taken for the default."""
    with pytest.raises((TypeError, ValueError), match="expected "):
        parity_there(CELL).repeat(layouts.adamw, workload=workloads.mlp, runs=value)


@pytest.mark.parametrize("value", ["", 0, False, (), {}])
def test_script_refuses_what_cannot_be_called(value: Any) -> None:
    """As its function, and as that which resumes it."""
    for make in (lambda: script(value), lambda: script(resume=value)):
        with pytest.raises(TypeError, match="expected a function but got"):
            make()


def test_command_refuses_what_is_no_file_or_no_mapping() -> None:
    """An empty name is that of no script."""
    with pytest.raises(FileNotFoundError, match="expected an existing file but got file=''"):
        command("")
    with pytest.raises(TypeError, match="expected a mapping"):
        command(__file__, env="")  # type: ignore[arg-type]


def test_declarations_refuse_empty_texts() -> None:
    """No pattern that fits nothing, and no list of names that has none."""
    with pytest.raises(ValueError, match="expected patterns that are not empty"):
        layouts.may_leave("")
    with pytest.raises(TypeError, match="expected a list of names but got fused=''"):
        layouts.supports({"fp32": ["fp32"]}, fused="")
