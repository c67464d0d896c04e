"""Describe the operation, setting or function that caused the error, in words and as data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_precision.parity.culprit import CalledAt, Culprit, Following
from pytest_precision.parity.explain.lines.calls import SingleCall
from pytest_precision.parity.explain.lines.following import Wrong
from pytest_precision.parity.explain.lines.kinds import ErrorKind, kind_of
from pytest_precision.parity.explain.lines.known import Known
from pytest_precision.parity.explain.lines.left_out import LeftOut
from pytest_precision.parity.explain.lines.set import SetOtherwise
from pytest_precision.parity.explain.source import lines_around, shown_file
from pytest_precision.trace.operations import CodeLine, LoggedOperation

MOST_FOLLOWING = 2
"""Further operations that are named."""


def of_operations(chosen: Sequence[Wrong], ranks: int, known: Known, root: Path) -> Culprit:
    """Describe operations that made wrong values, the first as the cause and others after it."""
    first = chosen[0]
    error = kind_of(first, known)
    same = {one.rank for one in chosen if one.call.line == first.call.line}
    of_lines = {one.call.line: one for one in reversed(chosen)}  # of each line, the first one
    further = [one for one in chosen[1:] if of_lines[one.call.line] is one]
    following = tuple(_following(one, known, root) for one in further[:MOST_FOLLOWING])
    rank = None if len(same) == ranks else first.rank
    return of_operation(error.blamed or first.call, error, root, rank=rank, following=following)


def of_operation(
    call: SingleCall,
    error: ErrorKind,
    root: Path,
    *,
    rank: int | None,
    following: tuple[Following, ...] = (),
    named: CodeLine | None = None,
) -> Culprit:
    """Describe one operation as the cause of the error, at the line `named` or else at its own."""
    line = named or call.line
    return Culprit(
        text=f"first wrong value: {called_place(call.operation, root)}: {error.words}",
        kind=error.kind,
        operation=call.operation.name,
        **line_fields(line, root),
        module=call.operation.module or None,
        rank=rank,
        constants=error.constants,
        reference=_called_at(error, root),
        following=following,
    )


def of_left_out(lacking: LeftOut, then: Culprit | None, root: Path) -> Culprit:
    """Describe a user's function that leaves out an operation as the cause of the error."""
    followed = f"; then {then.operation}" if then is not None else ""
    place = _of_line(lacking.line, root)
    is_set = then is not None and then.kind == "setting" and lacking.lacking is None
    return Culprit(
        text=f"first wrong value: {lacking.name}{place}: {lacking.words}{followed}",
        kind="setting" if is_set else "missing",
        operation=lacking.name,
        **line_fields(lacking.line, root),
        module=None if then is None else then.module,
        rank=lacking.rank,
        following=() if then is None else then.following,
    )


def of_setting(setting: SetOtherwise, root: Path, instead: Culprit | None = None) -> Culprit:
    """Describe an assignment of an option or attribute as the cause of the error."""
    found = setting.setting
    where = "" if found.line is None else _of_line(found.line, root)
    words = setting.words + (f"; then {instead.operation}" if instead is not None else "")
    return Culprit(
        text=f"first wrong value: {found.name}{where}: {words}",
        kind="setting",
        operation=found.name,
        **line_fields(found.line, root),
        module=None if instead is None else instead.module,
        following=() if instead is None else instead.following,
    )


def line_fields(line: CodeLine | None, root: Path) -> dict[str, Any]:
    """Return file, number, function and surroundings of a source line, as fields of `Culprit`."""
    if line is None:
        return {}
    shown = shown_file(line.file, root)
    return {
        "function": line.called or line.function,
        "file": shown.file,
        "line": line.line,
        "outside": shown.outside or not line.own,
        "source": lines_around(line.file, line.line),
    }


def _following(wrong: Wrong, known: Known, root: Path) -> Following:
    kind = kind_of(wrong, known)
    named = (kind.blamed or wrong.call).operation
    at = line_fields(named.line, root)
    text = f"{called_place(named, root)}: {kind.words}"
    return Following(named.name, at.get("file"), at.get("line"), text)


def _called_at(kind: ErrorKind, root: Path) -> CalledAt | None:
    if kind.reference is None:
        return None
    operation = kind.reference.operation
    at = line_fields(operation.line, root)
    return CalledAt(operation.name, at.get("function"), at.get("file"), at.get("line"))


def called_place(operation: LoggedOperation, root: Path) -> str:
    """Describe an operation by its name, its module and the source line that called it."""
    words = operation.name + (" in the backward" if operation.backward else "")
    if operation.is_custom:
        words += ", which counts as one operation,"
    if operation.module:
        words += f" of {operation.module}"
    return words + (_of_line(operation.line, root) if operation.line is not None else "")


def _of_line(line: CodeLine, root: Path) -> str:
    place = f"{shown_file(line.file, root).file}:{line.line}"
    return f" in {line.called}, called at {place}" if line.called else f" at {place}"
