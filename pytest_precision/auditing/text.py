"""Text: an audit for a terminal, and its parts as plain data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pytest_precision._visible import visible
from pytest_precision.auditing.finding import AuditFinding, short
from pytest_precision.auditing.pipeline import StageOutput
from pytest_precision.auditing.sharding import ShardingUnit
from pytest_precision.auditing.table import TableRow


def lines(
    findings: Sequence[AuditFinding],
    rows: Sequence[TableRow],
    units: Sequence[ShardingUnit],
    stages: Sequence[StageOutput],
) -> Iterator[str]:
    """Yield findings, then what is stored, sharded and sent; what is alike stands in one line."""
    for finding in findings:
        yield visible(f"{finding.severity}: {finding.message} [{finding.rule}]")
    if not findings:
        yield "nothing was found"
    yield ""
    yield from map(visible, _stored(rows))
    for unit in _folded(units):
        yield visible(unit)
    for stage in stages:
        sent = " and ".join(dict.fromkeys(map(short, stage.sends)))
        words = f"sends {sent}" if sent else "sends nothing on"
        yield f"{stage.name}: computes in {short(stage.computes)}, {words}"


def _stored(rows: Sequence[TableRow]) -> Iterator[str]:
    alike: dict[tuple[str, ...], list[TableRow]] = {}
    for row in rows:
        alike.setdefault(row.storage, []).append(row)
    for (kind, stored, *more), several in alike.items():
        size = sum(row.size for row in several)
        names = several[0].name + (f" and {len(several) - 1} more" if len(several) > 1 else "")
        yield f"{kind} {stored}: {len(several)} with {size:,} elements ({names})"
        yield from (f"  {words}" for words in more)


def _folded(units: Sequence[ShardingUnit]) -> Iterator[str]:
    alike: dict[str, list[str]] = {}
    for unit in units:
        data = unit_as_dict(unit)
        words = ", ".join(f"{k} {data[k]}" for k in ("stores", "computes", "reduces", "outputs"))
        alike.setdefault(f"{unit.kind} {words}", []).append(unit.name or "the model")
    for words, names in alike.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield f"{words} ({names[0]}{more})"


def unit_as_dict(unit: ShardingUnit) -> dict[str, Any]:
    """Return a unit as plain data; what differs between its tensors is `several`."""
    return {
        "name": unit.name,
        "kind": unit.kind,
        "stores": short(unit.stored) if unit.stored else "several",
        "computes": short(unit.computes) if unit.computes else "several",
        "reduces": short(unit.reduces) if unit.reduces else "several",
        "outputs": short(unit.outputs) if unit.outputs else "as computed",
    }


def stage_as_dict(stage: StageOutput) -> dict[str, Any]:
    """Return a stage as plain data."""
    return {
        "name": stage.name,
        "computes": short(stage.computes),
        "sends": [short(dtype) for dtype in stage.sends],
    }
