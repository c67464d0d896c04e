"""Tabulate which kinds of tensors differ at which steps, to show how a difference spreads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pytest_precision.engine.kinds import causal_rank
from pytest_precision.parity.compare.differing import Tally
from pytest_precision.parity.compare.divergences import Judgement
from pytest_precision.parity.compare.statistics import Statistics
from pytest_precision.parity.words import aligned, percent
from pytest_precision.trace.moment import Moment

COLUMNS = 10
"""Operations that the table shows."""

NARROW_COLUMNS = 6
"""Operations that it shows in a brief message, so that it fits 80 characters."""

MOST_COLUMNS = 40
"""Operations in the data, so that the entry of a long run in report.json stays small."""


def spread_lines(judgement: Judgement) -> list[str]:
    """Return lines: a table of differences by kind of tensor and step, then the kinds left out."""
    left_out = judgement.left_out.items()
    return [*rows(judgement), *(f"{kind} is not compared: {reason}" for kind, reason in left_out)]


def rows(judgement: Judgement, most: int = COLUMNS) -> list[str]:
    """Return the lines of a table that shows which kinds of tensors differ in which steps.

    `=` is equal bit for bit, `~` is within the criterion, a share of elements or a word is beyond
    it (`NaN` where the candidate has more of them, `differs` where only digests were kept), and
    `.` is not observed. A `…` stands where there are operations before or after these.

    Args:
        judgement: of both sides.
        most: how many operations are shown: those around the first divergence.
    """
    moments = _columns(judgement, most)
    cells = [["kind", "dtype", *_labels(judgement, moments)]]
    notes = []
    for kind in _kinds(judgement):
        tallies = _row(judgement, kind, moments)
        dtypes = _dtypes(tallies)
        cells.append([kind, ", ".join(sorted({ours for ours, _ in dtypes})), *map(_mark, tallies)])
        notes += [
            f"{kind}: {ours} here, {theirs} in the reference"
            for ours, theirs in dtypes
            if ours != theirs
        ]
    return aligned(cells) + notes


def spread_figures(judgement: Judgement) -> dict[str, Any]:
    """Return report data: which kinds of tensors differ in which steps, and by how much.

    Of each kind there are the states, `=`, `~`, `.` or what is wrong in words, and, where any is
    known, the figures of the tensors that are furthest off. Where values were kept, there are the
    errors of single tensors, too.
    """
    moments = _columns(judgement, MOST_COLUMNS)
    kinds = {}
    for kind in _kinds(judgement):
        tallies = _row(judgement, kind, moments)
        statistics = [_statistics(tally) for tally in tallies]
        measured = [[s for s in group if s.measured] for group in statistics]
        figures = {
            "mismatched": [_largest(s.mismatched / s.numel for s in group) for group in statistics],
            "max_ulp": [_largest(s.max_ulp for s in group) for group in measured],
            "rel_l2": [_largest(s.rel_l2 for s in group) for group in measured],
        }
        kinds[kind] = {
            "dtypes": [list(pair) for pair in _dtypes(tallies)],
            "state": [_state(tally) or "values" for tally in tallies],
            **{name: column for name, column in figures.items() if any(column)},
        }
    tensors = by_tensor(judgement, moments)
    return {
        "op": [moment.op for moment in moments],
        "operation": [moment.operation for moment in moments],
        "step": [moment.step for moment in moments],
        "kinds": kinds,
        **({"tensors": tensors} if tensors else {}),
    }


def _kinds(judgement: Judgement) -> list[str]:
    return sorted({kind for kind, _ in judgement.spread}, key=causal_rank)


def _row(judgement: Judgement, kind: str, moments: Iterable[Moment]) -> list[Tally | None]:
    return [judgement.spread.get((kind, moment.op)) for moment in moments]


def _columns(judgement: Judgement, most: int) -> list[Moment]:
    """Return up to `most` moments, one per operation, around the first divergence, as columns."""
    moments = list({moment.op: moment for moment in judgement.moments}.values())
    first = judgement.first.pair.moment.op if judgement.first else moments[0].op
    position = [moment.op for moment in moments].index(first)
    start = max(0, min(position - 2, len(moments) - most))
    return moments[start : start + most]


def _labels(judgement: Judgement, moments: list[Moment]) -> list[str]:
    labels = [str(m.step) if m.operation == "train" else m.operation for m in moments]
    if moments[0].op != judgement.moments[0].op:
        labels[0] = f"… {labels[0]}"
    if moments[-1].op != judgement.moments[-1].op:
        labels[-1] += " …"
    return labels


def _dtypes(tallies: Iterable[Tally | None]) -> list[tuple[str, str]]:
    return sorted({pair for tally in tallies if tally is not None for pair in tally.dtypes})


def _statistics(tally: Tally | None) -> list[Statistics]:
    findings = [] if tally is None else tally.findings
    return [finding.statistics for finding in findings if finding.statistics is not None]


def _largest(figures: Iterable[float | None]) -> float | None:
    return max((figure for figure in figures if figure is not None), default=None)


def _state(tally: Tally | None) -> str:
    """Return a table field: `.` not recorded, `=` equal, `~` within tolerance, else the problem.

    It is empty if only values differ by more than is allowed.
    """
    if tally is None:
        return "."
    if not tally.findings:
        return "~" if tally.within else "="
    problems = sorted({finding.problem for finding in tally.findings} - {"values"})
    if any(s.candidate_not_finite.nan > s.reference_not_finite.nan for s in _statistics(tally)):
        problems.append("NaN")
    return " ".join(problems)


def _mark(tally: Tally | None) -> str:
    if tally and any(f.problem == "values" and f.difference is None for f in tally.findings):
        return f"{_state(tally)} differs".strip()  # of some tensors, digests alone were kept
    shares = [(s.mismatched / s.numel, s) for s in _statistics(tally)]
    worst = max(shares, key=lambda pair: pair[0], default=None)
    share = "" if worst is None else percent(worst[1].mismatched, worst[1].numel)
    return f"{_state(tally)} {share}".strip()


MOST_TENSORS = 48
"""Tensors of a kind in the data; of more, every n-th is kept, and so is the first that differs."""

AFTER_THE_FIRST = "param"
"""The kind that is told beside the one that differs first: all that goes wrong ends there."""


def by_tensor(judgement: Judgement, moments: Sequence[Moment]) -> dict[str, Any]:
    """Return, per kind, tensors' names and for each name a row of relative L2 errors by moment.

    A row has one element per moment: 0 where the tensor is equal bit for bit or within its
    criterion, None where it was not observed or only its digest is known. A kind of which no error
    could be measured is left out.
    """
    first = judgement.first
    kinds = dict.fromkeys([*([first.pair.kind] if first else []), AFTER_THE_FIRST])
    tables = {}
    for kind in kinds:
        tallies = _row(judgement, kind, moments)
        names = list(dict.fromkeys(name for tally in tallies if tally for name in tally.names))
        errors = [_errors(tally) for tally in tallies]
        if len(names) > 1 and any(error for column in errors for error in column.values()):
            shown = _thinned(names, errors)
            rows = [[column.get(name) for column in errors] for name in shown]
            tables[kind] = {"name": shown, "rel_l2": rows, "tensors": len(names)}
    return tables


def _errors(tally: Tally | None) -> dict[str, float | None]:
    """Return each tensor's largest relative L2 error within one operation, such as a train step."""
    if tally is None:
        return {}
    errors: dict[str, float | None] = dict.fromkeys(tally.names, 0.0)
    for finding in tally.findings:
        name = finding.pair.name
        # Three digits are enough for a colour.
        error = float(f"{finding.statistics.rel_l2:.3g}") if finding.statistics else None
        largest = errors.get(name)
        errors[name] = max(error, largest or 0.0) if error is not None else largest or None
    return errors


def _thinned(names: list[str], errors: Sequence[dict[str, float | None]]) -> list[str]:
    if len(names) <= MOST_TENSORS:
        return names
    first = next(name for name in names if any(column.get(name) for column in errors))
    stride = -(-len(names) // (MOST_TENSORS - 1))
    shown_names = {*names[::stride], first}
    return [name for name in names if name in shown_names]
