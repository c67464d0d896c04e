"""The steps of each check, every one of which may refuse it; if none does, it passes.

Each gate takes a `Case` and returns the `Ruling` that refuses it, or None to let it pass.
`gate_order` has their order, and those of judgements between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_precision.check.case import Case
from pytest_precision.check.gate import Gate, failed, gate, unproven
from pytest_precision.matrix.contract import Contract
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.explain import wording
from pytest_precision.parity.self_checks import data_check
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
        finding = _disturbed_finding(case, number)
        if finding is not None:
            # Only here, so that a check that passes does not import what explains one that fails.
            from pytest_precision.parity.explain.locate import failed_at

            repeated_finding = (
                _disturbed_finding(case.around(finding.pair.moment.step), number) or finding
            )
            lines = wording.statistics_lines(repeated_finding, "before") + wording.swap_lines(
                repeated_finding, side
            )
            reason = wording.disturbance(repeated_finding, side.name)
            return failed_at(
                repeated_finding, reason, lines, case.culprit(repeated_finding).culprit
            )
    return None


def _disturbed_finding(case: Case, number: int) -> Finding | None:
    side = case.sides[number]
    other = case.sides[1 - number]
    return disturbed(side.trace, other.trace, case.terms.criteria)


@gate
def contract(case: Case) -> Ruling | None:
    """Fail the check if a run breaks a promise of its engine or loop, or lacks a required dtype."""
    for side in case.judged:
        declared = side.trace.header.violations
        if declared:
            return failed(f"{declared[0]} in the {side.name}")
        for required in case.contracts(side):
            broken = _violation(side.trace, required)
            if broken:
                remedy = (
                    f"primary_weight={side.cell.primary_weight} asks for that: cast the model, or "
                    "name in the marker what it is stored in, such as primary_weight=['fp32'] for "
                    "a loop under torch.autocast"
                )
                if side is case.reference:
                    remedy += (
                        "; a reference that is stored otherwise has a cell of its own, such as "
                        "reference_cell=cell.replace(primary_weight='bf16')"
                    )
                from_cell = required == Contract.of(side.cell)
                return failed(f"{broken} in the {side.name}", [remedy] if from_cell else [])
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
            return unproven(f"{words} in the {side.name}")
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
def hidden_kinds(case: Case) -> Ruling | None:
    """Fail the check if a run could not record a kind of tensor and the test does not exempt it."""
    for side in case.judged:
        reasons = hidden(side.trace, case.terms.criteria, case.compared)
        if reasons:
            kinds = listed([f"{kind} ({reason})" for kind, reason in reasons.items()], len(reasons))
            accepted = case.terms.write(dict.fromkeys(reasons, 'unchecked(reason="...")'))
            return unproven(
                f"the {side.name} hides {kinds}; if nothing has to be proved of "
                f"{'it' if len(reasons) == 1 else 'them'}, say so with {accepted}"
            )
    return None


@gate
def compared(case: Case) -> Ruling | None:
    """Fail the check if candidate and reference have no tensor in common to be compared."""
    return None if case.judgement.observations else unproven("no tensor of both sides was compared")


@gate
def known_kinds(case: Case) -> Ruling | None:
    """Fail the check if a criterion names a kind or pattern that no compared tensor has."""
    dtypes = case.candidate.trace.dtypes()
    names = {kind: names for kind, names in dtypes.items() if kind in case.compared}
    return unproven(case.terms.criteria.unknown(names))


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
    return unproven(first, others)


def refused(case: Case, gates: Iterable[Gate]) -> Ruling | None:
    """Return the outcome of the first gate that fails the check; None if all let it pass."""
    return next(filter(None, (gate_function(case) for gate_function in gates)), None)


def ruled(case: Case, gates: Iterable[Gate]) -> Ruling:
    """Return the outcome of the first gate that fails the check, or else a pass."""
    return refused(case, gates) or Ruling(in_part=case.terms.bare or not case.terms.criteria.exact)
