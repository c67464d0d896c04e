"""Text: an audit for a terminal, and its parts as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytest_precision._visible import visible
from pytest_precision.auditing.facts import TableRow
from pytest_precision.auditing.finding import SEVERITIES, AuditFinding, short_dtype
from pytest_precision.auditing.parallelism import ShardingUnit, StageOutput


def audit_lines(
    findings: Sequence[AuditFinding],
    rows: Sequence[TableRow],
    units: Sequence[ShardingUnit],
    stages: Sequence[StageOutput],
) -> Iterator[str]:
    """Yield what an audit prints, as lines: findings, then tensors, sharded modules and stages."""
    for finding in findings:
        yield from map(visible, _finding_lines(finding))
    counts = [sum(finding.severity == severity for finding in findings) for severity in SEVERITIES]
    counted = [_count(n, word) for n, word in zip(counts, SEVERITIES, strict=True) if n]
    yield ", ".join(counted) or "nothing was found"
    if rows:
        yield ""
    yield from map(visible, _stored(rows))
    for unit in _folded(units):
        yield visible(unit)
    for stage in stages:
        sent = " and ".join(dict.fromkeys(map(short_dtype, stage.sends)))
        unknown = "nothing on" if stage.is_last else "what its first step finds"
        yield f"{stage.name}: computes in {short_dtype(stage.computes)}, sends {sent or unknown}"


def _finding_lines(finding: AuditFinding) -> Iterator[str]:
    yield f"{finding.severity}: {finding.reason} [{finding.rule}]"
    if finding.names:
        yield f"  at: {finding.where}"
    yield f"  do: {finding.remedy}"


def _stored(rows: Sequence[TableRow]) -> Iterator[str]:
    alike_table_rows: dict[TableRow, list[TableRow]] = {}
    for row in rows:
        alike_table_rows.setdefault(row.is_like(), []).append(row)
    for kind, several in alike_table_rows.items():
        size = sum(row.size for row in several)
        names = several[0].name + (f" and {len(several) - 1} more" if len(several) > 1 else "")
        label = "frozen parameter" if kind.kind == "frozen" else kind.kind
        yield f"{_count(len(several), label)} in {kind.stored}, {size:,} elements: {names}"
        if kind.computes:
            yield f"  computed in {kind.computes}, reduced in {kind.reduces}"
        if kind.kind == "parameter":
            yield f"  {_updated(kind)}"


def _updated(row: TableRow) -> str:
    if not row.optimizer:
        return "updated by nothing here"
    states = ", ".join(f"{name} in {dtype}" for name, dtype in row.states)
    master = "without a master" if row.master == "none" else f"master: {row.master}"
    return "; ".join(filter(None, (f"updated by {row.optimizer}", master, states)))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _folded(units: Sequence[ShardingUnit]) -> Iterator[str]:
    alike: dict[str, list[str]] = {}
    for unit in units:
        data = unit_as_dict(unit)
        words = ", ".join(f"{k} in {data[k]}" for k in ("stores", "computes", "reduces"))
        alike.setdefault(f"{unit.kind} {words}, outputs {data['outputs']}", []).append(
            unit.name or "the model"
        )
    for words, names in alike.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{words}: {names[0]}{more}"


def unit_as_dict(unit: ShardingUnit) -> dict[str, Any]:
    """Return a sharded module's dtypes as plain data for JSON."""
    return {
        "name": unit.name,
        "kind": unit.kind,
        "stores": short_dtype(unit.stored) if unit.stored else "several",
        "computes": short_dtype(unit.computes) if unit.computes else "several",
        "reduces": short_dtype(unit.reduces) if unit.reduces else "several",
        "outputs": short_dtype(unit.outputs) if unit.outputs else "as computed",
    }


def stage_as_dict(stage: StageOutput) -> dict[str, Any]:
    """Return a pipeline stage's dtypes as plain data for JSON."""
    return {
        "name": stage.name,
        "computes": short_dtype(stage.computes),
        "sends": [short_dtype(dtype) for dtype in stage.sends],
    }
