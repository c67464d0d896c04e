"""Find the operation at which the error grows most, where single values cannot be followed.

Kernels that round otherwise make nearly every value unknown. Then operations are matched by their
place in a module, and the relative error of what each makes is held against that of what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from pytest_precision.parity.compare.bit_patterns import FLOATS
from pytest_precision.parity.culprit import Culprit, ModuleErrors
from pytest_precision.probes.lines.explain import worded
from pytest_precision.probes.lines.explain.nearest import Nearest
from pytest_precision.probes.lines.explain.parts_of_sums import PartsOfSums, not_added_up
from pytest_precision.probes.lines.operations import CodeLine, LoggedOperation, OperationLog, Value

Sketch = tuple[float, ...]

LEAST = 8.0
"""Growth below which an operation stands out no more than any other that rounds."""


class Grown(NamedTuple):
    """An operation that both runs call at the same place in a module, and how it raises the error.

    Attributes:
        operation: of the candidate.
        rank: of the candidate.
        error: relative L2 error of what it makes.
        growth: how many times that of what it reads, or that of a rounding where this is more.
        before: the largest error of what it reads.
    """

    operation: LoggedOperation
    rank: int
    error: float
    growth: float
    before: float

    @property
    def place(self) -> tuple[str, CodeLine | None]:
        """Return the name of the operation and the line that called it."""
        return self.operation.name, self.operation.line


def growth_of(
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
    root: Path,
    bound: float | None = None,
) -> Culprit | None:
    """Return the operation at which the error grows most; None if none stands out.

    What ranks have parts of stands out most, if no collective adds it up. Where there is a bound,
    the first operation that makes an error beyond it, of inputs within it,
    stands out.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
        root: files are named relative to it.
        bound: relative L2 error that is allowed; None where none is.
    """
    operations = grown(candidate, reference)
    part = not_added_up(candidate, reference)
    if part is not None:
        rank, operation = part
        return Culprit(
            text="no collective adds up what each rank has a part of before the update reads it: "
            f"{worded.called_place(operation, root)}",
            kind="grown",
            operation=operation.name,
            **worded.line_fields(operation.line, root),
            module=operation.module or None,
            rank=rank,
            modules=module_errors(operations),
        )
    first = None if bound is None else first_beyond(operations, bound)
    grown_operation = largest_growth(operations)
    if grown_operation is None:
        return None
    how = f"grows most, ×{grown_operation.growth:.3g}, to"
    operation = grown_operation.operation
    if first is not None and first.place != grown_operation.place:
        grown_operation, operation = first, first.operation
        how = f"is beyond the bound of {bound:.2g} for the first time, at"
    return Culprit(
        text=f"the error {how} {grown_operation.error:.2g} of the values: "
        f"{worded.called_place(operation, root)}",
        kind="grown",
        operation=operation.name,
        **worded.line_fields(operation.line, root),
        module=operation.module or None,
        rank=None if len(candidate) == 1 else grown_operation.rank,
        modules=module_errors(operations),
    )


def grown(candidate: Sequence[OperationLog], reference: Sequence[OperationLog]) -> list[Grown]:
    """Return how much each operation that both runs call in the same module increases the error."""
    pairs = zip(candidate, reference, strict=False)
    if len(candidate) == len(reference):
        return [g for rank, logs in enumerate(pairs) for g in _of_rank(rank, *logs)]
    # Each rank has others of the microbatches that one rank has all of.
    nearest = Nearest(reference)
    return [
        grown_operation
        for rank, log in enumerate(candidate)
        for grown_operation in _of_rank(rank, log, reference[0], nearest)
    ]


def largest_growth(operations: Sequence[Grown]) -> Grown | None:
    """Return the operation that multiplies the error most; None if none does so by at least 8."""
    grown_operation = max(operations, key=lambda operation: operation.growth, default=None)
    return (
        grown_operation if grown_operation is not None and grown_operation.growth >= LEAST else None
    )


def first_beyond(operations: Sequence[Grown], bound: float) -> Grown | None:
    """Return the first operation that makes an error beyond a bound of inputs within it, if any."""
    for operation in operations:
        if operation.error > bound >= operation.before and operation.growth >= LEAST:
            return operation
    return None


def module_errors(operations: Sequence[Grown]) -> tuple[ModuleErrors, ...]:
    """Return the error of each module's last output, forward and backward."""
    forward: dict[str, float] = {}
    backward: dict[str, float] = {}
    for grown_operation in operations:
        if grown_operation.operation.module:
            errors = backward if grown_operation.operation.backward else forward
            errors[grown_operation.operation.module] = grown_operation.error
    return tuple(
        ModuleErrors(name, forward.get(name), backward.get(name))
        for name in {**forward, **backward}
    )


def _of_rank(
    rank: int, ours: OperationLog, theirs: OperationLog, nearest: Nearest | None = None
) -> Iterator[Grown]:
    places = dict(_placed(theirs))
    errors: dict[int, float] = {}
    parts = PartsOfSums(over_ranks=nearest is not None)
    for place, mine in _placed(ours):
        other = places.get(place) if nearest is None else nearest.of(mine)
        before = max((errors.get(value.storage, 0.0) for value in mine.read), default=0.0)
        is_part = parts.note(mine, other)
        if other is not None and not is_part and _comparable(mine, other):
            same = {value.digest for value in other.read}
            read = [errors.get(v.storage, 0.0) for v in mine.read if v.digest not in same]
            output_errors = [
                *map(_error, mine.results, other.results, mine.sketches, other.sketches)
            ]
            worst = max(output_errors, default=0.0)
            least = max(*read, _rounding(mine), 0.0)
            yield Grown(mine, rank, worst, worst / least, max(read, default=0.0))
        else:  # what it adds to the error shows at the next one that both sides have
            output_errors = [before] * len(mine.results)
        # By its memory, since what is read may be a view of what was made.
        errors |= dict(zip((value.storage for value in mine.results), output_errors, strict=True))


def error(mine: Sketch, theirs: Sketch) -> float:
    """Return the relative L2 error of two tensors, estimated from random projections of them."""
    size = math.hypot(*theirs)
    apart = math.hypot(*(a - b for a, b in zip(mine, theirs, strict=True)))
    return apart / size if size else float(apart > 0)


def _error(mine: Value, theirs: Value, sketch: Sketch, other: Sketch) -> float:
    """Return a result's relative error, estimated from random projections; 0 for equal bytes."""
    return 0.0 if mine.digest == theirs.digest else error(sketch, other)


def _placed(log: OperationLog) -> Iterator[tuple[tuple[object, ...], LoggedOperation]]:
    """Yield each operation with (module, is backward, name, how many such calls came before)."""
    numbers: dict[tuple[object, ...], int] = {}
    for operation in log.operations:
        place = operation.module, operation.backward, operation.base
        number = numbers[place] = numbers.get(place, -1) + 1
        yield (*place, number), operation


def _comparable(mine: LoggedOperation, theirs: LoggedOperation) -> bool:
    shapes = [[value.shape for value in operation.results] for operation in (mine, theirs)]
    return shapes[0] == shapes[1] and any(mine.sketches) and len(mine.sketches) == len(shapes[0])


def _rounding(operation: LoggedOperation) -> float:
    """Return the machine epsilon of the coarsest dtype that an operation reads or makes."""
    values = (*operation.read, *operation.results)
    dtypes = {getattr(torch, value.dtype, None) for value in values}
    return max(
        (torch.finfo(dtype).eps for dtype in dtypes if dtype in FLOATS),
        default=torch.finfo(torch.float32).eps,
    )
