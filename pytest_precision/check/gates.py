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
from pytest_precision.parity.judged_alone import judged_alone
from pytest_precision.parity.self_checks import data_check
from pytest_precision.parity.self_checks.contradictions import contradicted
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
from pytest_precision.trace.broken_rules import BrokenRules
from pytest_precision.trace.reader import Trace

WIDER = {"float32": ("float64", "complex64", "complex128")}
"""Dtypes that hold all values of another one, and so keep what a cell asks for."""


@gate
def same_data(case: Case) -> Ruling | None:
    """Fail the check if the workload gave two ranks or two runs different microbatches."""
    unlike = data_check.unlike_data(case)
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
        finding = _disturbed(case, number)
        if finding is not None:
            # Only here, so that a check that passes does not import what explains one that fails.
            from pytest_precision.parity.explain.locate import failed_at

            again = _disturbed(case.around(finding.pair.moment.step), number) or finding
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
                from_cell = required == Contract.of(side.cell)
                return _failed(f"{broken} in the {side.name}", [remedy] if from_cell else [])
    return None


def _violation(trace: Trace, contract: Contract) -> str | None:
    """Return a sentence on the first tensor that lacks a required dtype; None if there is none."""
    dtypes = trace.dtypes()
    for kind, dtype in contract.dtypes.items():
        for name, actual_dtype in dtypes.get(kind, {}).items():
            if actual_dtype != dtype:
                return f"{kind} {name} is {actual_dtype}, the contract says {dtype}"
    for kind, dtype in contract.some.items():
        if kind in dtypes and not {*dtypes[kind].values()} & {dtype, *WIDER.get(dtype, ())}:
            others = ", ".join(sorted(set(dtypes[kind].values())))
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
    dtypes = trace.dtypes()
    for contract in contracts:
        for path in contract.paths:
            if path not in trace.header.paths:
                return f"the contract asks for the path {path}, which was not taken"
        for kind in contract.dtypes:
            if kind not in dtypes:
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
    contradiction = contradicted(case)
    if contradiction is None:
        return None
    headline, advice = contradiction
    return _failed(headline, [advice])


@gate
def loop_rules(case: Case) -> Ruling | None:
    """Fail the check if a training loop makes a mistake, such as adding to old gradients."""
    by_side = {side.name: side.log(BrokenRules).kinds for side in case.judged}
    broken = {words: kind for kinds in by_side.values() for words, kind in kinds.items()}
    for words, kind in broken.items():
        if case.exempt.judges(kind, ""):
            names = [name for name, kinds in by_side.items() if words in kinds]
            who = "both sides" if len(names) > 1 else f"the {names[0]}"
            advice = f"If that is meant, oracle={{{kind!r}: unchecked(reason=...)}} allows it."
            return _failed(f"{words} in {who}", [advice])
    return None


@gate
def by_itself(case: Case) -> Ruling | None:
    """Fail the check if a run shows by itself what is wrong whatever it trains."""
    for remark, names in judged_alone(case).items():
        if remark.fails:
            who = "both sides" if len(names) > 1 else f"the {names[0]}"
            advice = (
                f"If that is meant, oracle={{{remark.kind!r}: unchecked(reason=...)}} allows it."
            )
            return _failed(f"{remark.words} in {who}", [advice])
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
    if limit is None:
        return None
    unknown = curves.unmeasured(case.candidate)
    if unknown is not None:
        return _vacuous(f"{unknown}; leave max_lost_updates out")
    lost = curves.beyond(case.candidate, limit)
    return None if lost is None else _failed(lost, curves.lost_lines(*case.sides))


@gate
def hidden_kinds(case: Case) -> Ruling | None:
    """Fail the check if a run could not record a kind of tensor and the test does not exempt it."""
    for side in case.judged:
        reasons = hidden(side.trace, case.terms.criteria, case.compared)
        if reasons:
            kinds = listed([f"{kind} ({reason})" for kind, reason in reasons.items()], len(reasons))
            accepted = case.terms.write(dict.fromkeys(reasons, 'unchecked(reason="...")'))
            return _vacuous(
                f"the {side.name} hides {kinds}; if nothing has to be proved of "
                f"{'it' if len(reasons) == 1 else 'them'}, say so with {accepted}"
            )
    return None


@gate
def compared(case: Case) -> Ruling | None:
    """Fail the check if candidate and reference have no tensor in common to be compared."""
    return None if case.judgement.observations else _vacuous("no tensor of both sides was compared")


@gate
def known_kinds(case: Case) -> Ruling | None:
    """Fail the check if a criterion names a kind or pattern that no compared tensor has."""
    dtypes = case.candidate.trace.dtypes()
    names = {kind: names for kind, names in dtypes.items() if kind in case.compared}
    return _vacuous(case.terms.criteria.unknown(names))


@gate
def tolerances(case: Case) -> Ruling | None:
    """Fail the check if a tolerance is so loose that any value would satisfy it."""
    if case.terms.criteria.bitwise:
        return None
    # Only here, so that a check without a tolerance does not import what judges one.
    from pytest_precision.parity.self_checks.tolerance import proves_nothing

    candidate, reference = (side.trace for side in case.sides)
    freedoms = proves_nothing(candidate, reference, case.terms.criteria, case.compared)
    first, *others = (freedom.words for freedom in freedoms) if freedoms else ("",)
    return _vacuous(first, others)


def refused(case: Case, gates: Iterable[Gate]) -> Ruling | None:
    """Return the outcome of the first gate that fails the check; None if all let it pass.

    Those that need what a bare cell does not record are left out of one.
    """
    left_out = OF_PROBES if case.terms.bare else ()
    rulings = (gate_function(case) for gate_function in gates if gate_function not in left_out)
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
    by_itself,
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

HELD_TO_RULES = (consistent, loop_rules, by_itself, workload_gradients, declared_rule)
"""Those that hold a side to rules (identities, a loop's, a workload's), not to the other side."""

OF_PROBES = (*HELD_TO_RULES, lost_updates)
"""Those that read what a bare cell does not record."""

OF_TWO_SIDES = (agreement, hidden_kinds, compared, known_kinds, tolerances)
"""Those that ask how two sides are compared."""

ALONE_GATES = tuple(gate_function for gate_function in GATES if gate_function not in OF_TWO_SIDES)
"""The gates of a layout that is compared with further runs of itself."""

RECORDED_GATES = tuple(
    gate_function
    for gate_function in GATES
    if gate_function is by_itself
    or gate_function not in (same_data, undisturbed, *OF_PROBES, races)
)
"""The gates of two recordings of scripts, which are of train steps alone."""
