"""Failure lines: what stands below the first line of two sides that differ."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_precision.check.case import Case
from pytest_precision.check.proposal_lines import proposal_lines
from pytest_precision.parity.compare.divergences import Finding
from pytest_precision.parity.explain import curves, required_tolerance, spread, wording
from pytest_precision.parity.explain.diagnosis import Diagnosis
from pytest_precision.parity.explain.unlike import number_lines
from pytest_precision.parity.self_checks import declared_rule as oracle
from pytest_precision.parity.self_checks import identities, plain_gradients


def described(case: Case, closer: Case, found: Diagnosis) -> tuple[str, ...]:
    """Describe a divergence: its figures, what explains it, and how far it spreads."""
    return (
        *wording.name_lines(found.finding, closer.judgement, *case.sides),
        *wording.statistics_lines(found.finding),
        *wording.likewise_lines(found),
        *number_lines(found.finding, closer.judgement),
        *wording.swap_lines(found.finding, *case.sides),
        *notes(case, closer, found.finding),
        *curves.lost_lines(case.candidate.updates, case.reference.updates),
        *(
            f"It contradicts itself: {identities.contradiction_words(b, f'the {n}')}"
            for n, b in closer.contradictions()
        ),
        *(line for side in case.sides for line in oracle.breach_lines(side, case.terms.exempt)),
        *(
            line
            for s in case.sides
            for line in plain_gradients.gradient_lines(s, case.terms.exempt)
        ),
        "",
        *spread.table(closer.judgement),
        "",
        *required_tolerance.table(closer.judgement),
        *proposal_lines(closer, found),
        "",
    )


def notes(case: Case, closer: Case, finding: Finding) -> Iterator[str]:
    """Say what sides do that no loop should, and how to get elements where digests were kept."""
    if finding.problem == "values" and finding.difference is None:
        step = finding.pair.moment.step
        made = [side.manifest for side in case.sides if side.manifest is not None]
        yield f"Digests alone were kept of step {step}; to see elements, record again:"
        yield from (f"  {one.again(str(step))}" for one in made if not one.is_imported)
    for side in closer.sides:
        yield from (f"In the {side.name}: {words}" for words in side.trace.header.violations)
