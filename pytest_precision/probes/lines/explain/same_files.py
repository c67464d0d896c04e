"""Tell lines of two work trees for one line where both have the same text, moved or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from difflib import SequenceMatcher
from functools import cache
from itertools import takewhile
from pathlib import PurePath

from pytest_precision.probes.lines.explain.source_lines import lines_of
from pytest_precision.probes.lines.operations import CodeLine, OperationLog

SameLine = Callable[[CodeLine | None], CodeLine | None]
"""Returns the candidate's line for one of the reference, which may be that itself."""


def as_in_candidate(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog]
) -> list[OperationLog]:
    """Return the reference's logs with the candidate's lines where a line is the same in both.

    Another commit's files lie in another folder, so that no line of theirs would be one of here.
    A line that other lines have moved is named where the candidate has it; a line that was changed
    stays one of the other commit.
    """
    ours, theirs = ({*_files(logs)} for logs in (candidate, reference))
    our_files, foreign = ours - theirs, theirs - ours
    counterparts = {file: _counterpart(file, our_files) for file in foreign}
    if len(our_files) == len(foreign) == 1:  # two scripts, whatever they are called
        counterparts = dict(zip(foreign, our_files, strict=True))
    moved = {file: _moved(file, other) for file, other in counterparts.items() if other}
    if not moved:
        return [*reference]

    @cache
    def same(line: CodeLine | None) -> CodeLine | None:
        number = None if line is None else moved.get(line.file, {}).get(line.line)
        if line is None or number is None:
            return line
        return line._replace(file=counterparts[line.file], line=number)

    return [_with_lines(log, same) for log in reference]


def _moved(file: str, other: str) -> dict[int, int]:
    """Return for each line of a file that another one has, too, its number there, from 1.

    An indent does not count. Files that have less than half of their lines in common have none.
    """
    ours, theirs = ([text.strip() for text in lines_of(each)] for each in (file, other))
    blocks = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    numbers = {
        block.a + place: block.b + place for block in blocks for place in range(1, block.size + 1)
    }
    return numbers if 2 * len(numbers) >= max(len(ours), len(theirs)) else {}


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
