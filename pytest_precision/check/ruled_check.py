"""Record the sides of a check, run all gates and requested extra checks, and return the outcome.

That is the sides of another commit or installation, a baseline, or known defects, as asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

from pytest_precision.check.case import Case
from pytest_precision.check.gate_order import gates_of
from pytest_precision.check.gates import ruled
from pytest_precision.check.recordings import MakeRecordings
from pytest_precision.check.side import Side
from pytest_precision.check.terms import Terms
from pytest_precision.parity.culprit import BOTH_SIDES
from pytest_precision.parity.verdict import Ruling

PRINTED_LINES = 40
"""Lines of each rank's output that a report has."""

FurtherRule = Callable[[Ruling, Case], tuple[Ruling, dict[str, Any]]]
"""Goes on from a ruling on a case: returns its own, or the same one, and further figures."""


def ruled_check(
    sides: tuple[Side, ...], terms: Terms, further: Sequence[FurtherRule], record: MakeRecordings
) -> tuple[Ruling, dict[str, Any]]:
    """Record candidate and reference; return the check's outcome, and figures for report.json.

    Args:
        sides: the candidate and the reference, or the candidate alone.
        terms: of the test.
        further: what sides are held to besides each other, in the order in which it rules.
        record: makes the recordings of two sides.

    Raises:
        SideFailed, RanksSkipped, WorldSizeError: see `Recordings.both`.
        NoBaselineError, BaselineError: see `KeptCheck.ruled`.
    """
    with closing(record(sides[0], sides[-1])) as recordings:
        case = Case.opened(recordings, terms, alone=len(sides) == 1)
        ruling = ruled(case, gates_of(terms.registered, bare=terms.bare))
        figures = case.figures() | {"timing": recordings.timing}
        for rule in further:
            ruling, rule_figures = rule(ruling, case)
            figures |= rule_figures
        if ruling.outcome != "pass":
            figures["output"] = printed(recordings.output)
        return ruling, figures | dict(ruling.figures)


def printed(output: Mapping[str, Mapping[int, str]]) -> list[dict[str, Any]] | None:
    """Return the last lines that ranks printed, as report.json has them; None if there are none.

    Args:
        output: the end of what each rank printed, by side and rank.
    """
    return [
        {"side": side, "rank": rank, "lines": text.splitlines()[-PRINTED_LINES:]}
        for side in BOTH_SIDES
        for rank, text in sorted(output.get(side, {}).items())
    ] or None
