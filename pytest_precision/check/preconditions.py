"""Conditions that must hold before two runs can be compared, such as equal step counts.

The first four are checked before anything is recorded, the others after recording failed.
"""

from __future__ import annotations

import traceback

import pytest

from pytest_precision.check.gate import gate
from pytest_precision.check.side import Side
from pytest_precision.errors import (
    BaselineError,
    NoBaselineError,
    RanksSkipped,
    SideFailed,
    WorldSizeError,
    expected_but_got,
)
from pytest_precision.matrix.ways_in import LAYOUT
from pytest_precision.parity.verdict import Ruling
from pytest_precision.parity.words import listed
from pytest_precision.ranks.state.definitions import Definitions
from pytest_precision.recorders.scripts.script import unrecordable


@gate
def unpatched(definitions: Definitions | None) -> Ruling | None:
    """Fail the check if the test has monkeypatches, which its ranks do not see.

    Args:
        definitions: what modules of this process defined; None where it runs the sides itself, or
            where nobody looked in time.
    """
    replaced = [] if definitions is None else definitions.replaced()
    if not replaced:
        return None
    reason = expected_but_got(
        "modules as they define themselves, since ranks import them anew and would not see a "
        "monkeypatch of this process,",
        listed(replaced, 1),
        "make it an axis of the matrix or an environment variable that the layout reads, or "
        "run with --precision-ranks=inline",
    )
    return Ruling(outcome="error", reason=reason, details=tuple(replaced[1:]))


@gate
def distinct(same: bool, what: str) -> Ruling | None:
    """Fail the check if the reference is the candidate itself, which would always agree."""
    if not same:
        return None
    reason = f"the candidate and the reference are the same {what}"
    advice = "Whether it has the same bits in each run, parity.repeat(layout, ...) asks."
    return Ruling(outcome="vacuous", reason=reason, details=(advice,))


@gate
def recordable(*sides: Side) -> Ruling | None:
    """Fail the check if a script cannot run its sequence, as with a swap of engines."""
    for side in sides:
        lacking = unrecordable(side.layout.name, side.cell, resumes=side.resumes)
        if side.way_in != LAYOUT and lacking:
            return Ruling(outcome="error", reason=lacking)
    return None


@gate
def equal_steps(candidate: Side, reference: Side) -> Ruling | None:
    """Fail the check if candidate and reference have different numbers of train steps."""
    cells = candidate.cell, reference.cell
    ours, theirs = (cell.operations.count("train") for cell in cells)
    if ours == theirs:
        return None
    reason = expected_but_got(
        "as many train steps on both sides",
        f"{ours} in the candidate's sequence={cells[0].sequence!r} and {theirs} in the "
        f"reference's sequence={cells[1].sequence!r}",
        f"give reference_cell one that trains {ours}",
    )
    return Ruling(outcome="error", reason=reason)


@gate
def enough_ranks(lacking: WorldSizeError) -> Ruling | None:
    """Fail the check since there are too few devices for its ranks."""
    return Ruling(outcome="error", reason=f"{lacking}, which --precision-require forbids")


@gate
def baseline_there(lacking: NoBaselineError) -> Ruling | None:
    """Fail the check since its baseline for this environment is missing."""
    return Ruling(outcome="error", reason=f"{lacking}; --precision-require forbids to skip it")


@gate
def baseline_sound(failed: BaselineError) -> Ruling | None:
    """Fail the check since its baseline cannot be read or written."""
    return Ruling(outcome="error", reason=str(failed))


@gate
def recorded(failed: SideFailed) -> Ruling | None:
    """Fail the check since its candidate or its reference could not be recorded."""
    return Ruling(outcome="error", reason=failed.reason, details=tuple(failed.details))


@gate
def readable(failed: OSError) -> Ruling | None:
    """Fail the check since a recording cannot be read."""
    return Ruling(outcome="error", reason=f"the comparison failed: {failed}")


@gate
def computable(failed: RuntimeError) -> Ruling | None:
    """Fail the check since torch cannot compute the comparison in pytest's process."""
    first, *rest = str(failed).splitlines() or [""]
    told = traceback.format_exception(type(failed), failed, failed.__traceback__)
    return Ruling(
        outcome="error",
        reason=f"the comparison failed in pytest's process: {type(failed).__name__}: {first}",
        details=(*rest, *"".join(told).splitlines()),
    )


PRECONDITIONS = (
    unpatched,
    distinct,
    recordable,
    equal_steps,
    enough_ranks,
    baseline_there,
    baseline_sound,
    recorded,
    readable,
    computable,
)
"""The preconditions of a check, in the order in which they can refuse it."""


def before(candidate: Side, reference: Side, definitions: Definitions | None) -> Ruling | None:
    """Return a failed outcome if candidate and reference cannot be compared; None to go on.

    Args:
        candidate: the side under test.
        reference: the side that it must agree with.
        definitions: see `unpatched`.
    """
    return (
        unpatched(definitions)
        or distinct(candidate.computes_as(reference), "layout in the same cell")
        or recordable(candidate, reference)
        or equal_steps(candidate, reference)
    )


def before_alone(side: Side, definitions: Definitions | None) -> Ruling | None:
    """Return a failed outcome if a layout's repeated runs cannot be compared; None to go on.

    Args:
        side: what is recorded several times.
        definitions: see `unpatched`.
    """
    return unpatched(definitions) or recordable(side)


def after(error: Exception, *, require: bool, inline: bool) -> Ruling | None:
    """Turn an exception from recording or reading into a failed outcome; None for others.

    Args:
        error: what was raised.
        require: whether too few ranks are an error of the check.
        inline: whether the sides ran in this process, so that the error may be one of theirs.

    Raises:
        pytest.skip.Exception: the ranks have skipped, there are too few, or there is no baseline.
    """
    if isinstance(error, (RanksSkipped, WorldSizeError)):
        if require and isinstance(error, WorldSizeError):
            return enough_ranks(error)
        pytest.skip(str(error))
    if isinstance(error, NoBaselineError):
        if require:
            return baseline_there(error)
        pytest.skip(str(error))
    if isinstance(error, BaselineError):
        return baseline_sound(error)
    if isinstance(error, SideFailed):
        return recorded(error)
    if isinstance(error, OSError):
        return readable(error)
    if (
        isinstance(error, RuntimeError) and not inline
    ):  # of torch, where this process cannot compute
        return computable(error)
    return None
