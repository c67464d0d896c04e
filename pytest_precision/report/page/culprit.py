"""Prepare the operation that made the first wrong value for display on the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pytest_precision.parity.culprit import BOTH_SIDES, Culprit, source_place
from pytest_precision.report.page.doc_links import MEANING
from pytest_precision.report.page.heat import Heat, module_heats

MOST_MODULES = 200
"""Modules that are shown; report.json has them all."""


class ShownLine(NamedTuple):
    """One line of source code: number, text, and whether it made the first wrong value."""

    number: str
    text: str
    blamed: bool


class ShownCulprit(NamedTuple):
    """The operation that made the first wrong value, as the HTML report shows it.

    Attributes:
        text: what it did and where, a sentence.
        kind: what kind of error it is.
        meaning: the address of the row about that.
        facts: name to value.
        source: the line with those around it.
        constants: argument, with the candidate's value and the reference's.
        following: what was wrong next, a sentence each.
        modules: name, with the fields for forward and backward.
        more: number of modules that are not shown.
    """

    text: str
    kind: str
    meaning: str
    facts: list[tuple[str, str]]
    source: list[ShownLine]
    constants: list[tuple[str, str, str]]
    following: list[str]
    modules: list[tuple[str, Heat, Heat]]
    more: int


def shown_culprit(entry: Mapping[str, Any]) -> ShownCulprit | None:
    """Return the operation that caused a check's failure, for the HTML report; None if unknown."""
    if "culprit" not in entry:
        return None
    found = Culprit.of(entry["culprit"])
    return ShownCulprit(
        found.text,
        found.kind,
        f"{MEANING}#kind-{found.kind}",
        _facts(found),
        _source(found),
        _constants(found),
        [one.text for one in found.following],
        module_heats(found.modules[:MOST_MODULES]),
        max(0, len(found.modules) - MOST_MODULES),
    )


def _facts(found: Culprit) -> list[tuple[str, str]]:
    theirs = found.reference
    outside = " (no file of the project)" if found.outside and found.file else ""
    facts = [
        ("line", f"{found.where}{outside}"),
        ("function", found.function),
        ("operation", found.operation),
        ("module", found.module),
        ("rank", None if found.rank is None else str(found.rank)),
        ("reference", theirs and theirs.operation),
        ("reference line", theirs and source_place(theirs.file, theirs.line)),
        ("reference function", theirs and theirs.function),
    ]
    return [(name, value) for name, value in facts if value]


def _source(found: Culprit) -> list[ShownLine]:
    width = max((len(str(line.number)) for line in found.source), default=0)
    return [
        ShownLine(f"{number:{width}}", text, number == found.line) for number, text in found.source
    ]


def _constants(found: Culprit) -> list[tuple[str, str, str]]:
    if found.constants is None:
        return []
    ours, theirs = (found.constants[side] for side in BOTH_SIDES)
    return [
        (name, str(ours.get(name, "none")), str(theirs.get(name, "none")))
        for name in dict.fromkeys([*ours, *theirs])
    ]
