"""Tensors by operations: which tensor of a kind is how far off when, so that a layer stands out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_precision.parity.compare.divergences import Finding, Judgement, Tally
from pytest_precision.trace.moment import Moment

MOST_TENSORS = 48
"""Tensors of a kind in the data; of more, every n-th is kept, and so is the first that differs."""

AFTER_THE_FIRST = "param"
"""The kind that is told beside the one that differs first: all that goes wrong ends there."""


def by_tensor(judgement: Judgement, moments: Sequence[Moment]) -> dict[str, Any]:
    """Return, per kind, names of tensors and one row of relative L2 errors for each.

    A row has one element per moment: 0 where the tensor is equal bit for bit or within its
    criterion, None where it was not observed or only its digest is known. A kind of which no error
    could be measured is left out.
    """
    first = judgement.first
    kinds = dict.fromkeys([*([first.pair.kind] if first else []), AFTER_THE_FIRST])
    found = {}
    for kind in kinds:
        tallies = [judgement.spread.get((kind, moment.op)) for moment in moments]
        names = list(dict.fromkeys(name for tally in tallies if tally for name in tally.names))
        errors = [_errors(tally) for tally in tallies]
        if len(names) > 1 and any(error for own in errors for error in own.values()):
            shown = _thinned(names, errors)
            rows = [[own.get(name) for own in errors] for name in shown]
            found[kind] = {"name": shown, "rel_l2": rows, "tensors": len(names)}
    return found


def _errors(tally: Tally | None) -> dict[str, float | None]:
    """Return tensor to its largest error in one operation."""
    if tally is None:
        return {}
    errors: dict[str, float | None] = dict.fromkeys(tally.names, 0.0)
    for finding in tally.findings:
        name = finding.pair.name
        error = _error(finding)
        known = errors.get(name)
        errors[name] = max(error, known or 0.0) if error is not None else known or None
    return errors


def _error(finding: Finding) -> float | None:
    """Return the error with three digits, which are enough for a colour; None without one."""
    statistics = finding.difference and finding.difference.statistics
    if not statistics or statistics.rel_l2 is None:
        return None
    return float(f"{statistics.rel_l2:.3g}")


def _thinned(names: list[str], errors: Sequence[dict[str, float | None]]) -> list[str]:
    if len(names) <= MOST_TENSORS:
        return names
    first = next(name for name in names if any(own.get(name) for own in errors))
    stride = -(-len(names) // (MOST_TENSORS - 1))
    kept = {*names[::stride], first}
    return [name for name in names if name in kept]
