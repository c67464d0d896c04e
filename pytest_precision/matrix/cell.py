"""Cell: one combination of axis values, frozen plain data that is sent to the ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from pytest_precision.errors import InputMessage, expect_one_of, expected_but_got, is_bad_input
from pytest_precision.matrix import sequence as sequences
from pytest_precision.matrix.axis_reads import note
from pytest_precision.matrix.precisions import PRECISIONS, PRIMARY_WEIGHTS
from pytest_precision.matrix.sequence import Segment, segments
from pytest_precision.matrix.variables import Variables, plain_variables

__tracebackhide__ = is_bad_input

AxisValue = str | int | float | bool | None


@dataclass(frozen=True, eq=False)
class Cell:
    """One combination of values of a matrix's axes, in which a test runs.

    Cells are equal if their values look the same: 1, 1.0 and True are three values of an axis, and
    so are 0.0 and -0.0, since tensors that are made of them differ.

    Attributes:
        precision: compute precision, one of `PRECISIONS`.
        primary_weight: storage dtype of the resident parameters, one of `PRIMARY_WEIGHTS`.
        grad_accum_fusion: whether weight gradients are accumulated by the GEMM itself.
        sequence: the operations, in order, as text; `operations` has them as a tuple.
        world_size: number of data-parallel ranks, with which the sequence begins.
        extra: the user's own axes, as (name, value) pairs; read as attributes: `cell.my_axis`.
        device: type of the device of the models, `cpu` or `cuda`; not an axis.
        backend: backend of number formats: may be `auto` when it is requested; a layout gets
            `emulated` or `native`; not an axis.
        environment: variables that are set before torch starts on the ranks, as (name, value)
            pairs; not an axis.
        shared_by: a number that is a multiple of the world sizes of both sides, set by
            `parity.check`; not an axis.

    Raises:
        ValueError: a value is not one that layouts can know.
    """

    precision: str = "fp32"
    primary_weight: str = ""
    grad_accum_fusion: bool = False
    sequence: str = "train4"
    world_size: int = 1
    extra: tuple[tuple[str, AxisValue], ...] = ()
    device: str = "cpu"
    backend: str = "emulated"
    environment: Variables = ()
    shared_by: int = 1

    def __post_init__(self) -> None:
        expect_one_of("precision", self.precision, PRECISIONS)
        if not self.primary_weight:
            object.__setattr__(self, "primary_weight", PRECISIONS[self.precision].primary_weight)
        expect_one_of("primary_weight", self.primary_weight, PRIMARY_WEIGHTS)
        expect_one_of("grad_accum_fusion", self.grad_accum_fusion, (False, True))
        sequences.parse(self.sequence)
        if type(self.world_size) is not int or self.world_size < 1:
            raise ValueError(expected_but_got("an int from 1", f"world_size={self.world_size!r}"))

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of the operations in `sequence`: train, train, save for `train2-save`."""
        return sequences.operation_names(self.sequence)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The parts of `sequence`, each of which runs on one group of ranks, in order."""
        return segments(self.sequence, self.world_size)

    def of_segment(self, segment: Segment) -> Cell:
        """Return this cell with the number of ranks that one part of its sequence runs on."""
        return replace(self, world_size=segment.world_size, shared_by=self.fewest_microbatches)

    @property
    def swaps(self) -> bool:
        """Whether the sequence has a `swap`: training then goes on in the other run's layout."""
        return "swap" in self.operations

    @property
    def fewest_microbatches(self) -> int:
        """The smallest number of microbatches that the ranks of each segment can share evenly."""
        return math.lcm(self.shared_by, *(segment.world_size for segment in self.segments))

    @property
    def microbatches(self) -> int:
        """The number of microbatches in a step, over all ranks.

        It is the same on both sides: the smallest multiple of 6 that all their world sizes divide,
        so 6 up to 3 ranks, 12 on 4 and 24 on 8.
        """
        return math.lcm(6, self.fewest_microbatches)

    @property
    def axes(self) -> dict[str, AxisValue]:
        """A mapping from axis name to value; built-in axes come first."""
        note(name for name, _ in self.extra)
        return axes_of(self)

    def replace(self, **axes: Any) -> Cell:
        """Return a copy with other values of some axes, or with other environment variables.

        Raises:
            ValueError: this cell does not have the axis, or the axis cannot have the value.
            TypeError: `environment` is not a mapping from text to text.
        """
        if "environment" in axes:
            variables = plain_variables(axes.pop("environment"))
            return replace(self.replace(**axes), environment=variables)
        user_axes = dict(self.extra)
        unknown = [name for name in axes if name not in BUILT_IN_AXES and name not in user_axes]
        if unknown:
            axis_names = ", ".join([*BUILT_IN_AXES, *user_axes])
            raise ValueError(expected_but_got(f"one of the axes {axis_names}", unknown[0]))
        note(name for name in axes if name in user_axes)
        user_axes.update({name: axes.pop(name) for name in list(axes) if name in user_axes})
        # Not by `dataclasses.replace`, whose source would stand in each traceback of a wrong value.
        field_values = {field.name: getattr(self, field.name) for field in fields(self)}
        return Cell(**{**field_values, "extra": tuple(user_axes.items()), **axes})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Cell):
            return NotImplemented
        return self._values == other._values

    def __hash__(self) -> int:
        return hash(self._values)

    @property
    def _values(self) -> tuple[str, ...]:
        # The text of each axis value tells its type too.
        return tuple(repr(getattr(self, field.name)) for field in fields(self))

    def __getattr__(self, name: str) -> Any:
        user_axes = dict(self.extra)
        if name in user_axes:
            note([name])
            return user_axes[name]
        axis_names = ", ".join([*BUILT_IN_AXES, *user_axes])
        raise AttributeError(InputMessage(f"this cell has no axis {name!r}; it has {axis_names}"))


NO_AXES = ("extra", "device", "backend", "environment", "shared_by")

BUILT_IN_AXES = tuple(f.name for f in fields(Cell) if f.name not in NO_AXES)


def axes_of(cell: Cell) -> dict[str, AxisValue]:
    """Return a cell's axes as a dict of values, without counting them as read by a test."""
    return {name: getattr(cell, name) for name in BUILT_IN_AXES} | dict(cell.extra)
