"""Cells: plain data that is checked once, travels, and reads as attributes."""

from __future__ import annotations

import copy
import dataclasses
import pickle

import pytest

from pytest_precision import Cell
from pytest_precision.matrix.cell import BUILT_IN_AXES
from pytest_precision.matrix.precisions import PRECISIONS

CELL = Cell("mxfp8", sequence="train2-eval", world_size=2, extra=(("interleave", 32), ("tp", None)))


@pytest.mark.parametrize(
    ("axes", "known"),
    [
        ({"precision": "bf8"}, "fp32, bf16"),
        ({"precision": None}, "fp32, bf16"),
        ({"primary_weight": "int8"}, "fp32, bf16, fp16, quantized"),
        ({"grad_accum_fusion": 1}, "False, True"),
        ({"world_size": 0}, "an int from 1"),
        ({"world_size": True}, "an int from 1"),
        ({"world_size": 1.0}, "an int from 1"),
    ],
)
def test_refused_values(axes: dict[str, object], known: str) -> None:
    """A value that no layout could know is refused with its axis, itself and what is known."""
    ((axis, value),) = axes.items()
    with pytest.raises(ValueError, match=known) as refusal:
        Cell(**axes)  # type: ignore[arg-type]
    assert f"{axis}={value!r}" in str(refusal.value)


def test_refused_sequence() -> None:
    """A cell has a sequence that can be run."""
    with pytest.raises(ValueError, match="position 6"):
        Cell(sequence="train-load")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_primary_weight_by_precision(precision: str) -> None:
    """Unless a cell says otherwise, the primary weight is stored in the precision's own dtype."""
    assert Cell(precision).primary_weight == PRECISIONS[precision].primary_weight
    assert Cell(precision, "fp16").primary_weight == "fp16"


def test_operations() -> None:
    """The sequence reads as operations, too."""
    assert CELL.operations == ("train", "train", "eval")


@pytest.mark.parametrize(
    ("world_size", "shared_by", "microbatches", "fewest"),
    [
        *[(1, 1, 6, 1), (2, 1, 6, 2), (3, 3, 6, 3), (4, 4, 12, 4), (8, 8, 24, 8), (5, 1, 30, 5)],
        *[(1, 4, 12, 4), (2, 6, 6, 6), (4, 1, 12, 4)],
    ],
)
def test_microbatches(world_size: int, shared_by: int, microbatches: int, fewest: int) -> None:
    """The smallest multiple of 6, and the smallest number, that the ranks of both sides divide."""
    cell = dataclasses.replace(CELL, shared_by=shared_by).replace(world_size=world_size)
    assert (cell.microbatches, cell.fewest_microbatches) == (microbatches, fewest)


def test_axes_in_order() -> None:
    """All axes, the built-in ones first, and nothing that is none."""
    assert list(CELL.axes) == [*BUILT_IN_AXES, "interleave", "tp"]
    assert CELL.axes["interleave"] == 32
    assert "device" not in CELL.axes


def test_axes_of_the_users_own_are_attributes() -> None:
    """An axis of the user's own reads like a built-in one, also where its value is None."""
    assert CELL.interleave == 32
    assert CELL.tp is None


def test_missing_axis() -> None:
    """An axis that the cell lacks is an AttributeError that lists those that it has."""
    with pytest.raises(AttributeError, match=r"no axis 'glu'.*world_size, interleave, tp"):
        _ = CELL.glu


def test_replace() -> None:
    """Values of both sorts of axes are replaced; the cell itself stays as it is."""
    other = CELL.replace(world_size=1, interleave=0)
    assert (other.world_size, other.interleave, other.tp) == (1, 0, None)
    assert (other.precision, other.sequence) == ("mxfp8", "train2-eval")
    assert (CELL.world_size, CELL.interleave) == (2, 32)


@pytest.mark.parametrize("name", ["glu", "device", "extra"])
def test_replace_unknown_axis(name: str) -> None:
    """What is no axis of the cell cannot be replaced; the message lists the axes."""
    with pytest.raises(ValueError, match=f"world_size, interleave, tp but got {name}"):
        CELL.replace(**{name: 1})


def test_replace_checks_values() -> None:
    """A replaced value is checked like any other."""
    with pytest.raises(ValueError, match="world_size=0"):
        CELL.replace(world_size=0)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_travels(protocol: int) -> None:
    """A cell arrives in another process as it was."""
    arrived = pickle.loads(pickle.dumps(CELL, protocol))
    assert arrived == CELL
    assert arrived.interleave == 32


def test_copies() -> None:
    """Copying asks for attributes before there are any."""
    assert copy.deepcopy(CELL) == copy.copy(CELL) == CELL


def test_key() -> None:
    """Equal cells are one key, cells that differ on an axis of the user's own are two."""
    assert len({CELL, CELL.replace(interleave=32), CELL.replace(interleave=0)}) == 2


def test_frozen() -> None:
    """Nothing can change a cell."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        CELL.precision = "bf16"  # type: ignore[misc]
