"""Each planted defect is refused as its entry says, and each legitimate variation is left alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import both_sides  # noqa: F401
import defects  # noqa: F401
import entries_by_property  # noqa: F401
import entries_of_both_sides  # noqa: F401
import entries_of_candidates  # noqa: F401
import pytest
import variations  # noqa: F401
from catalogue import (
    DEFECTS,
    PASSED,
    PLANTED,
    VARIATIONS,
    Defect,
    Listed,
    Planted,
    Refusal,
    Variation,
)
from examined import (
    CAUGHT_BY,
    OTHER_SEEDS,
    TOLERANCES,
    DefectFound,
    defect_found,
    planted_verdict,
    refusal_of,
    variation_found,
)
from nightly_entries import LINES_BY_DAY, SHOWN_BY, VARIATIONS_SHOWN_BY
from one_run import ParityOfOneRun
from shared_ranks import SharedRanks

from pytest_precision import Cell, Parity, Verdict
from pytest_precision.check.gate_order import ordered_gates
from pytest_precision.check.gates import agreement, undisturbed
from pytest_precision.probes.declared_rule.oracle_findings import declared_rule
from pytest_precision.probes.gradients.gradient_findings import workload_gradients
from pytest_precision.probes.identities.contradictions import consistent
from pytest_precision.probes.loop_rules.refused_loops import loop_rules
from pytest_precision.registered import OF_PACKAGE

ParityIn = Callable[[Cell], Parity]

PAGE = Path(__file__).parents[2] / "docs" / "evidence" / "catalogue.md"
"""To write it anew: `python ci/bench/catalogue.py`."""


OF_ONE_SIDE = {
    gate.__name__ for gate in (consistent, loop_rules, workload_gradients, declared_rule)
}
"""Gates that name the sides which they refuse."""


COMPARES_ALL_KINDS = {agreement.__name__, undisturbed.__name__}
"""Gates that compare tensors of each kind in the same way."""


def row(name: str) -> list[str]:
    """Return the cells of a row of the page."""
    found = re.search(rf"^\| `{name}` \|.*$", PAGE.read_text(), re.MULTILINE)
    assert found is not None, f"{PAGE.name} has no {name}"
    return [part.strip() for part in found[0].split("|")[1:-1]]


def as_entered(found: Refusal, entered: Refusal) -> Refusal:
    """Return a refusal with as much of the tensor's name and of the rule as the entry has."""
    tensor = found.tensor[: len(entered.tensor) or None]
    return found._replace(tensor=tensor, rule=found.rule[: len(entered.rule) or None])


def in_ci(entry: Planted) -> bool:
    return entry.name not in SHOWN_BY


def in_ci_once(entry: Planted) -> Any:
    """Leave to the nightly run what other entries show as well."""
    return pytest.param(entry, id=entry.name, marks=() if in_ci(entry) else pytest.mark.nightly)


def of_one_run() -> set[str]:
    """Return the names of the entries of both sides of which one run is read as both sides' own.

    Those of several ranks are recorded twice by day, too, and of each gate the first one of a rank.
    """
    first: dict[str, str] = {}
    alone = [e for e in PLANTED.values() if e.of_both and e.cell.world_size == 1 and in_ci(e)]
    for entry in alone:
        first.setdefault(entry.refusal.gate, entry.name)
    return {entry.name for entry in alone} - {*first.values()}


def in_one_process(entry: Listed) -> bool:
    """Return whether the process of the tests is rank enough for an entry."""
    restarts = any(segment.in_new_processes for segment in entry.cell.segments)
    return entry.cell.world_size == 1 and not restarts


@pytest.fixture(scope="module")
def shared_ranks() -> Iterator[SharedRanks]:
    """Ranks of all entries that one process is not enough for."""
    listed = [*PLANTED.values(), *VARIATIONS]
    entries = [entry for entry in listed if not in_one_process(entry)]
    with closing(SharedRanks(entries)) as shared:
        yield shared


@pytest.fixture
def parity_shared(
    parity_by: Callable[..., Parity], shared_ranks: SharedRanks
) -> Callable[..., Parity]:
    """The fixture `parity` of a test in the given cell, on ranks that all such entries share."""

    def make(cell: Cell, **given: str) -> Parity:
        return replace(parity_by(cell, **given), ranks=shared_ranks)

    return make


@pytest.fixture
def parity_of_entry(
    parity_here: Callable[..., Parity], parity_shared: Callable[..., Parity]
) -> Callable[..., ParityIn]:
    """What makes the fixture `parity` of an entry's check, in this process if that is enough."""

    def make(entry: Planted, lines: str) -> ParityIn:
        return partial(parity_here if in_one_process(entry) else parity_shared, lines=lines)

    return make


@pytest.mark.parametrize("entry", [*map(in_ci_once, PLANTED.values())])
def test_a_planted_defect_is_refused_as_its_entry_says(
    parity_of_entry: Callable[..., ParityIn], entry: Planted
) -> None:
    """By the gate, at the step, the phase and the tensor, and by the rule that report.json names.

    What the page says of a defect of a real stack comes of the same check, whose failure names
    lines for one of each kind of error.
    """
    lines = entry.name in LINES_BY_DAY
    make = parity_in = parity_of_entry(entry, lines="auto" if lines else "off")
    if entry.name in of_one_run():
        parity_in = lambda cell: ParityOfOneRun.of(make(cell))  # noqa: E731
    verdict = planted_verdict(entry, parity_in)
    expect_refusal(entry, verdict)
    if isinstance(entry, Defect):
        found = defect_found(entry, verdict, parity_in if lines else None)
        hold_to_the_page(entry, found)
        if lines:
            hold_lines_to_the_page(entry, found)


@pytest.mark.nightly
@pytest.mark.parametrize("name", [e.name for e in DEFECTS if e.name not in LINES_BY_DAY])
def test_the_page_says_which_line_is_named(
    parity_of_entry: Callable[..., ParityIn], name: str
) -> None:
    """And what comes of the defect within the bounds that its failure proposes."""
    (entry,) = (entry for entry in DEFECTS if entry.name == name)
    parity_in = parity_of_entry(entry, lines="auto")
    hold_lines_to_the_page(entry, defect_found(entry, planted_verdict(entry, parity_in), parity_in))


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted(of_one_run()))
def test_two_runs_with_a_defect_are_refused_as_one_is(parity_there: ParityIn, name: str) -> None:
    """Both sides have the same bits, also where each is recorded by itself."""
    expect_refusal(PLANTED[name], planted_verdict(PLANTED[name], parity_there))


def expect_refusal(entry: Planted, verdict: Verdict) -> None:
    """Hold a verdict to what its entry says."""
    for side in ("candidate", "reference") if entry.of_both else ("candidate",):
        found = refusal_of(verdict, side)
        assert as_entered(found, entry.refusal) == entry.refusal, verdict.headline
    assert " in both sides: " in verdict.headline or entry.refusal.gate not in OF_ONE_SIDE


def hold_to_the_page(entry: Defect, found: DefectFound) -> None:
    """Compare what comes of a defect of a real stack with its row of the page, but for its line."""
    said = row(entry.name)[2:]
    assert found.named is not False, found.first_line
    assert said[0] == entry.refusal.rule
    bound = float(said[3] or 0)
    assert [bound >= tolerance for tolerance in TOLERANCES] == [*found.losses]
    assert said[-2] == CAUGHT_BY.get(entry.shared.refusal.gate, "identity")


def hold_lines_to_the_page(entry: Defect, found: DefectFound) -> None:
    """Compare the line that a failure names, and the bounds that it proposes, with the page."""
    said = row(entry.name)[2:]
    if said[1] == "yes":
        assert found.at(entry.marked), found.line
    if said[2] == "yes":
        assert found.made == entry.made
    assert (found.tolerated == "pass") == (said[-1] == "passes")


def test_every_entry_names_a_gate_or_why_none_refuses_it() -> None:
    """A gate of a cell; and a reason is given for what passes, and for nothing else."""
    gates = {gate.spec.name for gate in ordered_gates(OF_PACKAGE.probes)}
    for entry in PLANTED.values():
        assert (entry.refusal == PASSED) is bool(entry.unseen), entry.name
        assert entry.refusal.gate in gates or entry.unseen, entry.name


def shown(entry: Planted) -> tuple[object, ...]:
    """Return what an entry shows that another one may show, too."""
    refusal = entry.refusal
    kind = "" if refusal.gate in COMPARES_ALL_KINDS else refusal.kind
    said = refusal.gate, refusal.status, refusal.phase, kind, refusal.rule
    return entry.of_both, *said, refusal.factor is None, refusal.everywhere


def test_ci_names_a_line_for_each_kind_of_error() -> None:
    """As the nightly run does, where the operation alone tells the kind."""
    by_day = {entry.made for entry in DEFECTS if entry.name in LINES_BY_DAY}
    assert by_day == {entry.made for entry in DEFECTS}
    assert {*LINES_BY_DAY} < {entry.name for entry in DEFECTS}


def test_ci_has_an_entry_for_each_one_that_it_leaves_out() -> None:
    """By the same gate and rule, and no defect of a real stack is left out."""
    for name, other in SHOWN_BY.items():
        assert in_ci(PLANTED[other]), other
        assert shown(PLANTED[name]) == shown(PLANTED[other]), name
        assert not isinstance(PLANTED[name], Defect), name
    assert {*VARIATIONS_SHOWN_BY} < {entry.name for entry in VARIATIONS}


@pytest.mark.parametrize(
    "part",
    [
        lambda entry: (entry.refusal.gate, entry.of_both, entry.cell.world_size),
        lambda entry: (entry.refusal.gate, entry.of_both, entry.refusal.phase),
        lambda entry: (entry.cell.precision, entry.cell.primary_weight, entry.of_both),
        lambda entry: (entry.cell.precision, entry.refusal.gate),
    ],
    ids=["gate and ranks", "gate and phase", "storage", "precision and gate"],
)
def test_ci_has_an_entry_of_each_kind(part: Callable[[Planted], object]) -> None:
    """As the nightly run has."""
    entries = [*PLANTED.values()]
    assert {part(entry) for entry in entries if in_ci(entry)} == {part(entry) for entry in entries}


@pytest.mark.parametrize(
    "entry",
    [
        pytest.param(
            entry,
            id=entry.name,
            marks=pytest.mark.nightly if entry.name in VARIATIONS_SHOWN_BY else (),
        )
        for entry in VARIATIONS
    ],
)
def test_a_legitimate_variation_is_left_alone(
    parity_there: ParityIn, parity_shared: Callable[..., Parity], entry: Variation
) -> None:
    """It is the same bit for bit, or within the bounds that its failure proposes.

    Where the page says that bits differ, a CPU that multiplies otherwise may have the same.
    """
    parity_in = parity_there if in_one_process(entry) else partial(parity_shared, lines="off")
    # On the data that they were made from, bounds are tried before they are proposed.
    found = variation_found(entry, parity_in, seeds=OTHER_SEEDS[:1])
    assert found.bitwise or row(entry.name)[2] == "no"
    assert not found.flagged
    assert not found.flagged_later, found.flagged_later
    assert found.named is not False


def test_the_page_has_every_entry() -> None:
    """And no other."""
    listed = PAGE.read_text().partition("\n## Lines ")[0]
    named = re.findall(r"^\| `(\w+)` \|", listed, re.MULTILINE)
    assert named == [entry.name for entry in (*DEFECTS, *VARIATIONS)]


def test_three_defects_at_most_pass_within_the_bounds_that_are_proposed() -> None:
    """Three quarters of the failures have a word for the kind of error."""
    rows = [row(entry.name) for entry in DEFECTS]
    assert sum(cells[-1] == "passes" for cells in rows) <= 3
    assert 4 * sum(bool(cells[2]) for cells in rows) >= 3 * len(rows)
