"""The steps of a check, in order, each of which may refuse it; if none does, it passes.

Each gate takes a `Case` and returns the `Ruling` that refuses it, or None to let it pass. Their
order is that of the causes: on other data no layout is to blame, and what proves nothing matters
only where both sides agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_precision.check.case import Case
from pytest_precision.check.gate import Gate, gate
from pytest_precision.check.races import races
from pytest_precision.matrix.contract import Contract
from pytest_precision.parity.compare.divergences import Finding
from pytest_precision.parity.explain import curves, wording
from pytest_precision.parity.self_checks import data_check, identities
from pytest_precision.parity.self_checks.oracle_findings import (
    GRADIENT_ADVICE,
    breach_headline,
    breached,
    gradient_headline,
    wrong_gradients,
)
from pytest_precision.parity.self_checks.vacuity import (
    computed_elsewhere,
    disturbed,
    hidden,
    vacuous,
)
from pytest_precision.parity.verdict import Ruling
from pytest_precision.parity.words import listed
from pytest_precision.trace.reader import Trace

WIDER = {"float32": ("float64", "complex64", "complex128")}
"""Dtypes that hold all values of another one, and so keep what a cell asks for."""


@gate
def same_data(case: Case) -> Ruling | None:
    """Fail the check if the workload gave two ranks or two runs different microbatches."""
    unlike = data_check.other_data(case.candidate.data, case.reference.data, case.cells)
    if not unlike:
        return None
    return Ruling(outcome="error", reason=unlike, details=(data_check.ADVICE,))


@gate
def agreement(case: Case) -> Ruling | None:
    """Fail the check if any pair of tensors differs more than its criterion allows."""
    if (first := case.judgement.first) is None:  # which compares all pairs, once for all gates
        return None
    # Only here, so that a check that passes does not import what explains one that fails.
    from pytest_precision.check.disagreement import disagreement

    return disagreement(case, first)


@gate
def undisturbed(case: Case) -> Ruling | None:
    """Fail the check if an evaluation, save, load or skipped step disturbed training state."""
    for number, side in enumerate(case.judged):
        found = _disturbed(case, number)
        if found is not None:
            # Only here, so that a check that passes does not import what explains one that fails.
            from pytest_precision.parity.explain.locate import failed_at

            again = _disturbed(case.around(found.pair.moment.step), number) or found
            lines = wording.statistics_lines(again, "before") + wording.swap_lines(again, side)
            reason = wording.disturbance(again, side.name)
            return failed_at(again, reason, lines, case.culprit(again).culprit)
    return None


def _disturbed(case: Case, number: int) -> Finding | None:
    side = case.sides[number]
    other = case.sides[1 - number]
    return disturbed(side.trace, other.trace, case.terms.criteria)


@gate
def contract(case: Case) -> Ruling | None:
    """Fail the check if a run breaks a promise of its engine or loop, or lacks a required dtype."""
    for side in case.judged:
        declared = side.trace.header.violations
        if declared:
            return _failed(f"{declared[0]} in the {side.name}")
        for required in case.contracts(side):
            broken = _violation(side.trace, required)
            if broken:
                remedy = (
                    f"primary_weight={side.cell.primary_weight} asks for that: cast the model, or "
                    "name in the marker what it is stored in, such as primary_weight=['fp32'] for "
                    "a loop under torch.autocast"
                )
                own = required == Contract.of(side.cell)
                return _failed(f"{broken} in the {side.name}", [remedy] if own else [])
    return None


def _violation(trace: Trace, contract: Contract) -> str | None:
    """Return a sentence on the first tensor that lacks a required dtype; None if there is none."""
    held = trace.dtypes()
    for kind, dtype in contract.dtypes.items():
        for name, own in held.get(kind, {}).items():
            if own != dtype:
                return f"{kind} {name} is {own}, the contract says {dtype}"
    for kind, dtype in contract.some.items():
        if kind in held and not {*held[kind].values()} & {dtype, *WIDER.get(dtype, ())}:
            others = ", ".join(sorted(set(held[kind].values())))
            return f"no {kind} is stored in {dtype}, but all in {others},"
    return None


@gate
def vacuity(case: Case) -> Ruling | None:
    """Fail the check if a run trained nothing, or did not compute as its configuration asks."""
    for side in case.judged:
        words = (
            vacuous(side.trace, side.cell, case.terms.criteria)
            or computed_elsewhere(side.trace, side.cell)
            or _not_exercised(side.trace, case.contracts(side))
        )
        if words:
            return _vacuous(f"{words} in the {side.name}")
    return None


def _not_exercised(trace: Trace, contracts: Sequence[Contract]) -> str | None:
    """Return words on a required code path, such as `fused`, that a run did not take; else None."""
    held = trace.dtypes()
    for contract in contracts:
        for path in contract.paths:
            if path not in trace.header.paths:
                return f"the contract asks for the path {path}, which was not taken"
        for kind in contract.dtypes:
            if kind not in held:
                return f"the contract names the dtype of {kind}, which was not observed"
    return None


@gate
def declared_rule(case: Case) -> Ruling | None:
    """Fail the check if updates do not follow the optimizer that the workload declares."""
    wrong = breached(case.judged, case.terms.exempt)
    if not wrong:
        return None
    advice = (
        "If they should be, declare their rule as optimizer_rule of the workload; "
        "oracle=unchecked(reason=...) turns this judgement off, "
        f"oracle={{{wrong[0].breach.kind!r}: unchecked(reason=...)}} that of this kind."
    )
    return _failed(breach_headline(wrong), [advice])


@gate
def consistent(case: Case) -> Ruling | None:
    """Fail the check if an identity, such as weight = cast master, fails within one of the runs."""
    found = case.contradictions()
    if not found:
        return None
    who = "both sides" if len(found) > 1 else f"the {found[0][0]}"
    return _failed(
        identities.contradiction_words(found[0][1], who), [identities.advice_on(found[0][1])]
    )


@gate
def loop_rules(case: Case) -> Ruling | None:
    """Fail the check if a training loop makes a mistake, such as adding to old gradients."""
    broken = {words: kind for side in case.judged for words, kind in side.broken_rules.items()}
    for words, kind in broken.items():
        if case.terms.exempt.judges(kind, ""):
            names = [side.name for side in case.judged if words in side.broken_rules]
            who = "both sides" if len(names) > 1 else f"the {names[0]}"
            advice = f"If that is meant, oracle={{{kind!r}: unchecked(reason=...)}} allows it."
            return _failed(f"{words} in {who}", [advice])
    return None


@gate
def workload_gradients(case: Case) -> Ruling | None:
    """Fail the check if losses or gradients are not those of the workload's model and loss."""
    wrong = wrong_gradients(case.judged, case.terms.exempt)
    if not wrong:
        return None
    return _failed(gradient_headline(wrong), [GRADIENT_ADVICE])


@gate
def lost_updates(case: Case) -> Ruling | None:
    """Fail the check if rounding loses more of the candidate's updates than the test allows."""
    limit = case.terms.max_lost_updates
    log = case.candidate.updates
    if limit is None:
        return None
    unknown = curves.unmeasured(log)
    if unknown is not None:
        return _vacuous(f"{unknown}; leave max_lost_updates out")
    lost = curves.beyond(log, limit)
    return None if lost is None else _failed(lost, curves.lost_lines(log, case.reference.updates))


@gate
def hidden_kinds(case: Case) -> Ruling | None:
    """Fail the check if a run could not record a kind of tensor and the test does not exempt it."""
    for side in case.judged:
        found = hidden(side.trace, case.terms.criteria, case.compared)
        if found:
            kinds = listed([f"{kind} ({reason})" for kind, reason in found.items()], len(found))
            accepted = case.terms.write(dict.fromkeys(found, 'unchecked(reason="...")'))
            return _vacuous(
                f"the {side.name} hides {kinds}; if nothing has to be proved of "
                f"{'it' if len(found) == 1 else 'them'}, say so with {accepted}"
            )
    return None


@gate
def compared(case: Case) -> Ruling | None:
    """Fail the check if candidate and reference have no tensor in common to be compared."""
    return None if case.judgement.observations else _vacuous("no tensor of both sides was compared")


@gate
def known_kinds(case: Case) -> Ruling | None:
    """Fail the check if a criterion names a kind or pattern that no compared tensor has."""
    held = case.candidate.trace.dtypes()
    names = {kind: names for kind, names in held.items() if kind in case.compared}
    return _vacuous(case.terms.criteria.unknown(names))


@gate
def tolerances(case: Case) -> Ruling | None:
    """Fail the check if a tolerance is so loose that any value would satisfy it."""
    if case.terms.criteria.bitwise:
        return None
    # Only here, so that a check without a tolerance does not import what judges one.
    from pytest_precision.parity.self_checks.tolerance import proves_nothing

    candidate, reference = (side.trace for side in case.sides)
    found = proves_nothing(candidate, reference, case.terms.criteria, case.compared)
    first, *others = (one.words for one in found) if found else ("",)
    return _vacuous(first, others)


def refused(case: Case, gates: Iterable[Gate]) -> Ruling | None:
    """Return the outcome of the first gate that fails the check; None if all let it pass.

    Those that need what a bare cell does not record are left out of one.
    """
    left_out = OF_PROBES if case.terms.bare else ()
    rulings = (ask(case) for ask in gates if ask not in left_out)
    return next(filter(None, rulings), None)


def ruled(case: Case, gates: Iterable[Gate]) -> Ruling:
    """Return the outcome of the first gate that fails the check, or else a pass."""
    return refused(case, gates) or Ruling(in_part=case.terms.bare or not case.terms.criteria.exact)


def _failed(reason: str, details: Iterable[str] = ()) -> Ruling:
    return Ruling(outcome="fail", reason=reason, details=tuple(details))


def _vacuous(reason: str | None, details: Iterable[str] = ()) -> Ruling | None:
    return Ruling(outcome="vacuous", reason=reason, details=tuple(details)) if reason else None


GATES: tuple[Gate, ...] = (
    same_data,
    agreement,
    undisturbed,
    contract,
    vacuity,
    consistent,
    loop_rules,
    workload_gradients,
    declared_rule,
    lost_updates,
    hidden_kinds,
    compared,
    known_kinds,
    tolerances,
    races,
)
"""The gates of a cell; the last one runs the candidate again."""

HELD_TO_RULES = (consistent, loop_rules, workload_gradients, declared_rule)
"""Those that hold a side to rules (identities, a loop's, a workload's), not to the other side."""

OF_PROBES = (*HELD_TO_RULES, lost_updates)
"""Those that read what a bare cell does not record."""

OF_TWO_SIDES = (agreement, hidden_kinds, compared, known_kinds, tolerances)
"""Those that ask how two sides are compared."""

ALONE_GATES = tuple(one for one in GATES if one not in OF_TWO_SIDES)
"""The gates of a layout that is compared with further runs of itself."""

RECORDED_GATES = tuple(
    one for one in GATES if one not in (same_data, undisturbed, *OF_PROBES, races)
)
"""The gates of two recordings of scripts, which are of train steps alone."""

MUTANT_GATES = tuple(one for one in GATES if one not in (agreement, races))
"""The gates of a mutant that both sides agree about; `races` would run it without the mutant."""
