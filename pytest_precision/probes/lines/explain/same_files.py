"""Tell lines of two work trees for one line where both have the same text at the same number."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import takewhile
from pathlib import PurePath

from pytest_precision.probes.lines.explain.worded import line_text
from pytest_precision.probes.lines.operations import CodeLine, OperationLog

SameLine = Callable[[CodeLine | None], CodeLine | None]
"""Returns the candidate's line for one of the reference, which may be that itself."""


def as_in_candidate(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog]
) -> list[OperationLog]:
    """Return the reference's logs with the candidate's files where a line is the same in both.

    Another commit's files lie in another folder, so that no line of theirs would be one of here.
    A line that was changed or has moved stays a line of the other commit.
    """
    ours, theirs = ({*_files(logs)} for logs in (candidate, reference))
    moved = {file: _counterpart(file, ours - theirs) for file in theirs - ours}
    if not any(moved.values()):
        return [*reference]

    @cache
    def same(line: CodeLine | None) -> CodeLine | None:
        file = "" if line is None else moved.get(line.file, "")
        if line is None or not file or not line_text(line.file, line.line):
            return line
        is_same = line_text(line.file, line.line) == line_text(file, line.line)
        return line._replace(file=file) if is_same else line

    return [_with_lines(log, same) for log in reference]


def _with_lines(log: OperationLog, same: SameLine) -> OperationLog:
    return replace(
        log,
        operations=[row._replace(line=same(row.line)) for row in log.operations],
        settings=[row._replace(line=same(row.line)) for row in log.settings],
        restores=[row._replace(line=same(row.line)) for row in log.restores],
        entries=[row._replace(line=same(row.line) or row.line) for row in log.entries],
    )


def _files(logs: Sequence[OperationLog]) -> Iterator[str]:
    for log in logs:
        for line in (*(row.line for row in log.operations), *(row.line for row in log.settings)):
            if line is not None and line.is_users:
                yield line.file


def _counterpart(file: str, others: set[str]) -> str:
    """Return the file with the most parts of its path in common, from its name on; or nothing."""
    common = {other: _in_common(file, other) for other in others}
    most = max(common.values(), default=0)
    likeliest = [other for other, parts in common.items() if parts == most]
    return likeliest[0] if most and len(likeliest) == 1 else ""


def _in_common(file: str, other: str) -> int:
    pairs = zip(reversed(PurePath(file).parts), reversed(PurePath(other).parts), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
