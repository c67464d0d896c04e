"""Describe the operation, setting or function that caused the error, in words and as data.

A report leaves the machine: it names no folder of it, and what it quotes is short.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any, NamedTuple, Protocol

from pytest_precision.parity.culprit import CalledAt, Culprit, Following
from pytest_precision.probes.lines.explain.calls import ReferenceLookup, SingleCall
from pytest_precision.probes.lines.explain.following import Wrong
from pytest_precision.probes.lines.explain.kind_words import ErrorKind
from pytest_precision.probes.lines.explain.kinds import kind_of
from pytest_precision.probes.lines.explain.source_lines import lines_around
from pytest_precision.probes.lines.operations import CodeLine, LoggedOperation
from pytest_precision.ranks.code.installed import PACKAGE_FOLDERS, is_installed


class ShownFile(NamedTuple):
    """The path of a file as a report shows it, and whether it is outside the project."""

    file: str
    outside: bool


def shown_file(file: str, root: Path) -> ShownFile:
    """Return the path of a file as a report shows it, without folders of this machine.

    Args:
        file: as code objects name it: absolute, relative to the working directory, or no file at
            all, such as `<string>`.
        root: the root of the project.
    """
    if file.startswith("<"):
        return ShownFile(file, True)
    path = os.path.abspath(file)
    place = PurePath(path)
    if place.is_relative_to(root) and not is_installed(path):
        return ShownFile(place.relative_to(root).as_posix(), False)
    for number in range(len(place.parts) - 1, 0, -1):  # also one of another machine
        if place.parts[number - 1] in PACKAGE_FOLDERS:
            return ShownFile("/".join(place.parts[number:]), True)
    folder = Path(path).parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return ShownFile(place.relative_to(folder).as_posix(), True)


MOST_NEAREST = 2
"""Operations that are listed where none is certain to be the cause."""

MOST_FOLLOWING = 2
"""Further operations that are named."""


def of_operations(
    chosen: Sequence[Wrong], ranks: int, lookup: ReferenceLookup, root: Path
) -> Culprit:
    """Return the culprit of `chosen` operations: the first as the cause, then those following."""
    first = chosen[0]
    error = kind_of(first, lookup)
    same = {origin.rank for origin in chosen if origin.call.line == first.call.line}
    of_lines = {
        origin.call.line: origin for origin in reversed(chosen)
    }  # of each line, the first one
    further = [origin for origin in chosen[1:] if of_lines[origin.call.line] is origin]
    following = tuple(_following(origin, lookup, root) for origin in further[:MOST_FOLLOWING])
    rank = None if len(same) == ranks else first.rank
    return of_operation(error.blamed or first.call, error, root, rank=rank, following=following)


def nearest(origins: Sequence[Wrong], lookup: ReferenceLookup, root: Path) -> tuple[str, ...]:
    """Return what is nearest to a cause where none is certain, in words: the first of each line."""
    of_lines = {origin.call.line: origin for origin in reversed(origins)}
    firsts = [origin for origin in origins if of_lines[origin.call.line] is origin]
    return tuple(_following(origin, lookup, root).text for origin in firsts[:MOST_NEAREST])


def of_operation(
    call: SingleCall,
    error: ErrorKind,
    root: Path,
    *,
    rank: int | None,
    following: tuple[Following, ...] = (),
    named: CodeLine | None = None,
) -> Culprit:
    """Return the culprit for one operation, with its error kind, at the line `named` if given."""
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


class Suspect(Protocol):
    """What a line of the user's does that is no operation, such as an assignment."""

    @property
    def line(self) -> CodeLine | None:
        """Return the line."""

    @property
    def other_line(self) -> CodeLine | None:
        """Return the line of the reference that does the like, if it is known."""

    @property
    def name(self) -> str:
        """Return what it sets or leaves out."""

    @property
    def words(self) -> str:
        """Return words on what the two sides do."""


def of_user_code(
    suspect: Suspect, kind: str, root: Path, then: Culprit | None, rank: int | None
) -> Culprit:
    """Return the culprit for a user's function that leaves something out, or an assignment.

    Args:
        suspect: the function that leaves something out, the assignment, or the like.
        kind: of the error.
        root: files are named relative to it.
        then: the operation that made the first wrong value, where there is one.
        rank: of the candidate; None for all.
    """
    place = "" if suspect.line is None else _of_line(suspect.line, root)
    followed = "" if then is None else f"; then {then.operation}"
    return Culprit(
        text=f"first wrong value: {suspect.name}{place}: {suspect.words}{followed}",
        kind=kind,
        operation=suspect.name,
        **line_fields(suspect.line, root),
        module=None if then is None else then.module,
        rank=rank,
        reference=None
        if suspect.other_line is None
        else _at(suspect.name, suspect.other_line, root),
        following=() if then is None else then.following,
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
        "outside": shown.outside or not line.is_users,
        "source": lines_around(line.file, line.line),
    }


def _following(wrong: Wrong, lookup: ReferenceLookup, root: Path) -> Following:
    kind = kind_of(wrong, lookup)
    named = (kind.blamed or wrong.call).operation
    at = line_fields(named.line, root)
    text = f"{called_place(named, root)}: {kind.words}"
    return Following(named.name, at.get("file"), at.get("line"), text)


def _called_at(kind: ErrorKind, root: Path) -> CalledAt | None:
    if kind.reference is None:
        return None
    operation = kind.reference.operation
    return _at(operation.name, operation.line, root)


def _at(name: str, line: CodeLine | None, root: Path) -> CalledAt:
    at = line_fields(line, root)
    place = at.get("function"), at.get("file"), at.get("line")
    return CalledAt(name, *place, at.get("source", ()))


def called_place(operation: LoggedOperation, root: Path) -> str:
    """Return an operation in words: its name, its module and the source line that called it."""
    words = operation.name + (" in the backward" if operation.backward else "")
    if operation.is_custom:
        words += ", which counts as one operation,"
    if operation.module:
        words += f" of {operation.module}"
    return words + (_of_line(operation.line, root) if operation.line is not None else "")


def _of_line(line: CodeLine, root: Path) -> str:
    place = f"{shown_file(line.file, root).file}:{line.line}"
    return f" in {line.called}, called at {place}" if line.called else f" at {place}"
