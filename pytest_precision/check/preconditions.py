"""Conditions that must hold before two runs can be compared, such as equal step counts.

They are asked before anything is recorded; `failed_check` rules on what fails after that.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_precision.check.gate import gate
from pytest_precision.check.side import Side
from pytest_precision.errors import expected_but_got
from pytest_precision.matrix.ways_in import LAYOUT
from pytest_precision.parity.verdict import Ruling
from pytest_precision.parity.words import listed
from pytest_precision.ranks.state.definitions import Definitions
from pytest_precision.ranks.state.patches import pending_patches
from pytest_precision.recorders.scripts.script import unrecordable


@gate
def unpatched(definitions: Definitions | None) -> Ruling | None:
    """Fail the check if the test has changed something that its ranks' processes do not have.

    Args:
        definitions: what modules of this process defined; None where it runs the sides itself, or
            where nobody looked in time.
    """
    if definitions is None:
        return None
    patches = pending_patches()
    patched_names = {(id(patch.target), patch.name) for patch in patches if not patch.is_item}
    replaced = [*map(str, patches), *definitions.replaced(patched_names)]
    if not replaced:
        return None
    reason = expected_but_got(
        "no monkeypatches, which ranks would not see since they import modules anew,",
        listed(replaced, 1),
        "make it an axis of the matrix or an environment variable that the layout reads, keep a "
        "fixture that is for other tests out of those that ask for `parity`, or run with "
        "--precision-ranks=inline",
    )
    return Ruling(outcome="error", reason=reason, details=tuple(replaced[1:]))


@gate
def distinct(same: bool, noun: str) -> Ruling | None:
    """Fail the check if the reference is the same as the candidate, so that both always agree."""
    if not same:
        return None
    reason = f"the candidate and the reference are the same {noun}"
    advice = "To ask whether it has the same bits in each run, use parity.repeat(layout, ...)."
    return Ruling(outcome="vacuous", reason=reason, details=(advice,))


@gate
def recordable(*sides: Side) -> Ruling | None:
    """Fail the check if a script cannot run the sequence of steps, saves and loads asked for."""
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
        "the same number of train steps on both sides",
        f"{ours} in the candidate's sequence={cells[0].sequence!r} and {theirs} in the "
        f"reference's sequence={cells[1].sequence!r}",
        f"give reference_cell a sequence with {ours} train steps",
    )
    return Ruling(outcome="error", reason=reason)


PRECONDITIONS = (unpatched, distinct, recordable, equal_steps)
"""The preconditions of a check, in the order in which they can refuse it."""


def before(sides: Sequence[Side], definitions: Definitions | None) -> Ruling | None:
    """Return a failed outcome if candidate and reference cannot be compared; None to go on.

    Args:
        sides: the side under test, and the one that it must agree with if there is one.
        definitions: see `unpatched`.
    """
    candidate_side, reference_side = sides[0], sides[-1]
    return (
        unpatched(definitions)
        or distinct(
            len(sides) > 1 and candidate_side.computes_as(reference_side), "layout in the same cell"
        )
        or recordable(*sides)
        or equal_steps(candidate_side, reference_side)
    )
