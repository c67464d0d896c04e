"""Write docs/evidence/catalogue.md: what comes of every defect and variation that is known.

    python ci/bench/catalogue.py
    python ci/bench/catalogue.py loops [DEFECT …]   the section on training loops alone

`tests/check/test_catalogue.py` compares the page with what comes of them now. Its last sections
are that of `loop_lines.py` and that of `stack_lines.py`, and stay.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "fixtures"))

import defects  # noqa: E402, F401
import variations  # noqa: E402, F401
from catalogue import DEFECTS, VARIATIONS, Defect, Refusal  # noqa: E402
from examined import (  # noqa: E402
    CAUGHT_BY,
    TOLERANCES,
    DefectFound,
    ParityIn,
    VariationFound,
    defect_found,
    planted_verdict,
    refusal_of,
    variation_found,
    without_lines,
)
from loop_lines import LOOPS, write_loops  # noqa: E402

from pytest_precision import Cell, Parity  # noqa: E402
from pytest_precision.options import Settings  # noqa: E402
from pytest_precision.plugin.resources import Resources  # noqa: E402

PAGE = ROOT / "docs" / "evidence" / "catalogue.md"

SETTINGS = Settings(device="cpu", timeout=120, pure=True)

BOUNDS = {"": "none", "pass": "passes", "fail": "caught", "vacuous": "caught"}

INTRODUCTION = f"""\
# Catalogue

`python ci/bench/catalogue.py` plants defects of real training stacks, and harmless variations, into
this package's engines (`fixtures/defects`, `fixtures/variations`), and writes this page.

| column | meaning |
| --- | --- |
| error | the kind of error that the failure names |
| line | `yes` if the [culprit](../reference/report.md#the-culprit) is the planted line or next to it; otherwise the line that the failure names |
| kind | `yes` if the culprit's operation alone gives the kind of error |
| losses | the largest `atol` and `rtol` of {", ".join(f"{t:g}" for t in TOLERANCES)} at which the losses of four steps differ |
| both | the judgement that finds the defect if candidate and reference have it: `oracle` (the rule of the optimizer), `gradients` of the workload, or an `identity` between tensors of the run |
| bounds | whether the defect `passes` within the bound that its failure proposes |"""  # noqa: E501


class Row(NamedTuple):
    """What has come of a defect.

    Attributes:
        entry: the defect.
        refusal: of the candidate that has it.
        shared: what catches it where both sides have it, in words of `CAUGHT_BY`.
        examination: what else came of it.
    """

    entry: Defect
    refusal: Refusal
    shared: str
    examination: DefectFound


def where(refusal: Refusal) -> tuple[int | None, str, str]:
    """Return step, phase and kind of the first tensor that is wrong."""
    return refusal.step, refusal.phase, refusal.kind


def row_of_defect(row: Row) -> list[str]:
    """Return the row of a defect."""
    entry, refusal, shared, examination = row
    return [
        f"`{entry.name}`",
        entry.source.rstrip("."),
        refusal.rule,
        line_of(entry, examination),
        "yes"
        if examination.made == entry.made
        else f"{examination.made or 'no'}, not {entry.made}",
        largest_bound(examination.losses),
        shared,
        BOUNDS[examination.tolerated],
    ]


def largest_bound(losses: tuple[bool, ...]) -> str:
    """Return the largest tolerance at which losses differ; empty if they differ at none."""
    return next((f"{t:g}" for t, differs in zip(TOLERANCES, losses, strict=True) if differs), "")


def line_of(entry: Defect, examination: DefectFound) -> str:
    """Return whether the line is named where the defect is planted, or which one is."""
    if examination.at(entry.marked):
        return "yes"
    return (
        "no"
        if examination.line is None
        else f"`{Path(examination.line[0]).name}:{examination.line[1]}`"
    )


def totals_of_defects(rows: list[Row]) -> Iterator[str]:
    """Yield the sums of the columns."""
    number, examinations = len(rows), [row.examination for row in rows]
    caught = sum(row.refusal.status in ("fail", "vacuous") for row in rows)
    placed = sum(where(row.refusal) == where(row.entry.refusal) for row in rows)
    named = sum(f.named is True for f in examinations)
    wrongly = sum(f.named is False for f in examinations)
    yield f"- The check catches {caught} of {number} defects, {placed} of them where they start."
    yield (
        f"- {named} failures name the right kind of error, {wrongly} failures name a wrong kind."
    )
    seen_by = zip(TOLERANCES, zip(*(f.losses for f in examinations), strict=True), strict=True)
    counts = ", ".join(f"{sum(losses)} with a tolerance of {bound:g}" for bound, losses in seen_by)
    yield f"- A comparison of the losses of four steps finds {counts} of these defects."
    lines = sum(row.examination.at(row.entry.marked) for row in rows)
    kinds = sum(row.examination.made == row.entry.made for row in rows)
    yield (
        f"- {lines} of {number} failures ({lines / number:.0%}) name the planted line or its "
        f"neighbour; in {kinds} ({kinds / number:.0%}), the culprit's operation alone gives the "
        "kind of error."
    )
    by = [row.shared for row in rows]
    yield (
        "- If candidate and reference both have the defect, judgements find "
        f"{number - by.count('not caught')} defects: "
        f"{by.count('oracle')} by the oracle, {by.count('gradients')} by gradients and "
        f"{by.count('identity')} by identities."
    )
    offered = [f.tolerated for f in examinations if f.tolerated]
    yield (
        f"- {len(offered)} of {number} failures propose bounds, and {offered.count('pass')} "
        "of these defects pass within the bounds."
    )


def totals_of_variations(trials: list[VariationFound]) -> Iterator[str]:
    """Yield the sums of the columns."""
    others = [f for f in trials if not f.bitwise]
    yield f"- {len(trials) - len(others)} of {len(trials)} variations agree bit for bit."
    flagged, later = (
        sum(map(bool, column))
        for column in zip(*((f.flagged, f.flagged_later) for f in others), strict=True)
    )
    yield (
        f"- {flagged} of the other {len(others)} variations exceed the bounds that their failure "
        f"proposes, and {later} exceed these bounds on data of three other seeds."
    )
    wrongly = sum(f.named is False for f in others)
    yield f"- For {wrongly} of these variations, the failure names an error."


def table(heading: list[str], rows: list[list[str]]) -> str:
    """Return a table of Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(of_defects: list[Row], of_variations: list[VariationFound]) -> str:
    """Return the page."""
    heading = ["defect", "what is wrong, and public reports"]
    heading += ["error", "line", "kind", "losses", "both", "bounds"]
    rows = [
        [
            f"`{entry.name}`",
            entry.source.rstrip("."),
            "yes" if variation.bitwise else "no",
        ]
        for entry, variation in zip(VARIATIONS, of_variations, strict=True)
    ]
    return "\n\n".join(
        [
            INTRODUCTION,
            "\n".join([*totals_of_defects(of_defects), *totals_of_variations(of_variations)]),
            "## Defects",
            table(heading, [*map(row_of_defect, of_defects)]),
            "## Variations",
            table(["variation", "what it is", "bit for bit"], rows),
            "",
        ]
    )


def shown(variation: VariationFound) -> VariationFound:
    """Print what was found, since all of it takes minutes."""
    print(variation, flush=True)
    return variation


def row_found(entry: Defect, parity_in: ParityIn) -> Row:
    """Check a defect of the candidate, and of both sides, and print what comes of it."""
    verdict = planted_verdict(entry, parity_in)
    examination = defect_found(entry, verdict, parity_in)
    of_both = refusal_of(planted_verdict(entry.shared, without_lines(parity_in)))
    shared = CAUGHT_BY.get(of_both.gate, "identity")
    print(entry.name, shared, examination, flush=True)
    return Row(entry, refusal_of(verdict), shared, examination)


def main() -> None:
    """Run everything, and write the page; or the section on training loops."""
    if sys.argv[1:2] == ["loops"]:
        write_loops(sys.argv[2:])
        return
    resources = Resources()

    def parity_in(cell: Cell) -> Parity:
        return Parity("test", cell, SETTINGS, resources.ranks(SETTINGS), resources.traces)

    try:
        of_defects = [row_found(entry, parity_in) for entry in DEFECTS]
        of_variations = [shown(variation_found(entry, parity_in)) for entry in VARIATIONS]
    finally:
        resources.close()
    _, heading, later = PAGE.read_text().partition(LOOPS)
    text = page(of_defects, of_variations)
    PAGE.write_text(f"{text}{heading}{later}")


if __name__ == "__main__":
    main()
