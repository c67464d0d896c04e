"""Run a failed check again with operation logs, to name the line of the first wrong value.

Where that line is no error, but another kernel, a further run says where its error grows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_precision.check.recordings import Recordings
from pytest_precision.engine.kinds import STARTING_KINDS
from pytest_precision.errors import SideFailed
from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.compare.logical_tensor import LogicalTensor
from pytest_precision.parity.culprit import Culprit, Named
from pytest_precision.parity.explain.history import GRADIENTS
from pytest_precision.probes.lines.explain.first_difference import before_updates, up_to
from pytest_precision.probes.lines.explain.found import SHOW_OPTIONS, Unnamed, culprit_of
from pytest_precision.probes.lines.explain.growth import growth_of
from pytest_precision.probes.lines.explain.left_alone import written_by_reference
from pytest_precision.probes.lines.explain.no_backward import without_backward
from pytest_precision.probes.lines.explain.other_groups import other_groups
from pytest_precision.probes.lines.explain.pieces import hold_other_pieces
from pytest_precision.probes.lines.explain.same_files import as_in_candidate
from pytest_precision.probes.lines.explain.unnamed import unnamed
from pytest_precision.probes.lines.operation_files import path_of, read_operations
from pytest_precision.probes.lines.operations import OperationLog
from pytest_precision.trace.digests import content_digest, in_order
from pytest_precision.trace.moment import INIT, LogRequest, Moment, Window
from pytest_precision.trace.recording import Recording
from pytest_precision.trace.segment_folders import holders, recorded_segments

if TYPE_CHECKING:
    from pytest_precision.check.case import Case

NOTHING_STANDS_OUT = "No line is named: the error grows at no operation more than at the others"

UNFOLLOWED = ("unknown", "order")
"""Kinds of what is no error by itself, but rounds otherwise, so that nothing later is followed."""


FIRST_UPDATE = Moment(0, "train", 1, "optimizer_step")

Logs = tuple[list[OperationLog], list[OperationLog]]
"""What the ranks of the candidate have logged, and those of the reference."""


def line_named(case: Case, finding: Finding) -> Named:
    """Run candidate and reference again with operation logs; return the operation at fault."""
    root = case.terms.root
    rule = case.terms.criteria.of_tensor(finding.pair.kind, finding.pair.name)
    bound = rule.criterion.share if rule.criterion.tolerates else None
    if case.again is None:
        return recorded_lines(finding, case.sides, root, bound)
    return culprit_named(case.again, finding, case.sides, root, bound)


def culprit_named(
    recordings: Recordings,
    finding: Finding,
    sides: tuple[Recording, Recording],
    root: Path,
    bound: float | None,
) -> Named:
    """Run candidate and reference again with operation logs, and name the operation at fault.

    Whatever happens in these runs, the verdict of those before stands.

    Args:
        recordings: run both sides again.
        finding: where they part.
        sides: as they were recorded.
        root: the folder that files are named from.
        bound: share of a tensor's norm by which it may differ, so that values cannot be followed;
            None where bytes must be equal.
    """
    moment = finding.pair.moment
    if moment == INIT and recordings.candidate.workload is None:
        moment = FIRST_UPDATE  # a script shows its optimizer at its first update
    ranks = max(side.cell.world_size for side in sides)  # of which one side may hold shards
    log_request = LogRequest(moment.op, moment.step, pieces=ranks, sketches=bound is not None)

    def logs_with(**changes: bool) -> Logs:
        return _logs(recordings, sides, log_request._replace(**changes))

    try:
        return _named_operation(logs_with(), finding, root.absolute(), bound, logs_with=logs_with)
    except Exception as error:  # whatever it is, both sides differ
        reason = (
            error.reason if isinstance(error, SideFailed) else f"{type(error).__name__}: {error}"
        )
        return Named(None, f"No line is named: in a third run {reason}")


def _logs(
    recordings: Recordings, sides: tuple[Recording, Recording], log_request: LogRequest
) -> Logs:
    """Run candidate and reference again, and return the logs of their operations, rank by rank."""
    ours, theirs = (
        _read(folder, side, log_request)
        for folder, side in zip(recordings.logged(log_request), sides, strict=True)
    )
    return ours, as_in_candidate(ours, theirs)


def _named_operation(
    logs: Logs,
    finding: Finding,
    root: Path,
    bound: float | None,
    *,
    logs_with: Callable[..., Logs],
) -> Named:
    """Name the operation that caused the error, from the operation logs of both runs.

    Args:
        logs: of both.
        finding: where they part.
        root: the absolute folder that files are named from.
        bound: share of a tensor's norm by which it may differ, so that values cannot be followed;
            None where bytes must be equal.
        logs_with: returns logs with more in them: with sketches, which tell how large errors are,
            whole ones, which tell what an earlier step has made, or with rows, which other batches
            may have, too.
    """
    if finding.pair.moment == INIT and finding.pair.kind in STARTING_KINDS:
        later, logs = logs_with, before_updates(logs)

        def logs_with(**changes: bool) -> Logs:
            return before_updates(later(**changes))

    if bound is not None:
        grown = growth_of(*logs, root, bound)
        return Named(grown, "" if grown else NOTHING_STANDS_OUT)
    pair = finding.pair
    operation, step = pair.moment.operation, pair.moment.step
    digests = _digest(pair.candidate), _digest(pair.reference)

    def culprit_in(sides: Logs) -> Culprit | Unnamed | None:
        culprit: Culprit | None = None
        if pair.kind in SHOW_OPTIONS:
            lacks = {"extra": "reference", "missing": "candidate"}.get(finding.problem, "")
            key = TensorKey.of(pair.kind, pair.name)
            culprit = other_groups(sides, key, digests, root, lacks=lacks)
        elif finding.problem == "missing" and pair.kind in GRADIENTS:
            culprit = without_backward(*sides, root, step)
        return culprit or culprit_of(*sides, root, pair.kind, pair.name, operation, digests)

    logs = up_to(step, logs, pair.kind)
    culprit = culprit_in(logs)
    if isinstance(culprit, Culprit) and culprit.kind == "data" and step > 1:
        whole = up_to(step, logs_with(whole=True))
        if not any(log.cut for side in whole for log in side):
            logs, culprit = whole, culprit_in(whole) or culprit
    if isinstance(culprit, Unnamed) and culprit.reason:
        by_row = culprit_in(up_to(step, logs_with(rows=True)))
        culprit = by_row if isinstance(by_row, Culprit) else culprit
    differing = f"{pair.kind} of {pair.name}"
    if not isinstance(culprit, Culprit):
        return _unnamed(logs, culprit, operation, differing, digests, root)
    grown = growth_of(*logs_with(sketches=True), root) if culprit.kind in UNFOLLOWED else None
    if grown is not None:
        text = f"{culprit.text}; {grown.text}"
        culprit = replace(culprit, text=text, modules=grown.modules)
    return Named(culprit)


def _unnamed(
    logs: Logs,
    refused: Unnamed | None,
    operation: str,
    differing: str,
    digests: tuple[str, str],
    root: Path,
) -> Named:
    """Name what the reference alone writes, or say why no line is named, and which come nearest."""
    nearest = () if refused is None else tuple(f"perhaps {text}" for text in refused.nearest)
    if refused is not None and refused.reason:
        return Named(None, f"No line is named: {refused.reason}", nearest)
    written = written_by_reference(*logs, root, differing, digests)
    if written is not None:
        return Named(written)
    return Named(None, unnamed(*logs, operation, differing, digests), nearest)


def _digest(logical: LogicalTensor | None) -> str:
    """Return the digest that a log has of a side's tensor; empty if its values are gone."""
    tensor = None if logical is None else logical.tensor
    if tensor is None or not tensor.numel():
        return ""
    return content_digest(in_order(tensor), 0, tensor.numel())


def recorded_lines(
    finding: Finding, sides: tuple[Recording, Recording], root: Path, bound: float | None
) -> Named:
    """Name the operation that caused the error, from logs recorded along with both runs.

    Args:
        finding: where they part.
        sides: the recordings.
        root: the folder that files are named from.
        bound: share of a tensor's norm by which it may differ, so that values cannot be followed;
            None where bytes must be equal.
    """
    lacking = [side for side in sides if not _has_logs(side)]
    imported = [s.name for s in lacking if s.manifest is not None and s.manifest.is_imported]
    if imported:
        note = f"No line is named: the {imported[0]} was imported, without a log of operations"
        return Named(None, note)
    if lacking:
        return Named(None, _to_record(lacking, max(side.cell.world_size for side in sides)))
    try:
        ours, theirs = (
            [read_operations(side.trace.folder, rank, side.trace.files) for rank in _ranks(side)]
            for side in sides
        )
        logs = (ours, as_in_candidate(ours, theirs))
        ranks = max(side.cell.world_size for side in sides)
        if hold_other_pieces(*logs):
            whole = [
                s for s, side_logs in zip(sides, logs, strict=True) if side_logs[0].pieces < ranks
            ]
            if whole:
                return Named(None, _to_record(whole, ranks))
        named = _named_operation(logs, finding, root.absolute(), bound, logs_with=lambda **_: logs)
        return named if _is_as_it_was(theirs, sides[1]) else _without_their_source(named)
    except Exception as error:  # a log may be a stranger's
        return Named(None, f"No line is named: {type(error).__name__}: {error}")


def _is_as_it_was(logs: Sequence[OperationLog], side: Recording) -> bool:
    """Return whether no file of the user's that a recording names has changed since.

    What is quoted of it would be another line.
    """
    assert side.manifest is not None
    began = datetime.fromisoformat(side.manifest.date).timestamp() + 1  # it is cut to seconds
    lines = [operation.line for log in logs for operation in log.operations]
    files = {line.file for line in lines if line is not None and line.is_users}
    return all(os.stat(file).st_mtime <= began for file in files if os.path.isfile(file))


def _without_their_source(named: Named) -> Named:
    culprit = named.culprit
    if culprit is None or culprit.reference is None:
        return named
    called = culprit.reference._replace(source=())
    return named._replace(culprit=replace(culprit, reference=called))


def _to_record(sides: Sequence[Recording], ranks: int) -> str:
    """Return in words the commands that record runs with operation logs; empty if unknown."""
    manifests = [side.manifest for side in sides if side.manifest is not None]
    if any(manifest.is_from_within for manifest in manifests):
        return "No line is named: a Recorder keeps no log of operations, as record --lines does"
    commands = [manifest.again(lines=ranks) for manifest in manifests]
    return f"To name the line, record with: {'; '.join(commands)}" if commands else ""


def _has_logs(side: Recording) -> bool:
    place = side.trace.folder
    return all(side.trace.files.has(path_of(place, rank)) for rank in _ranks(side))


def _ranks(side: Recording) -> range:
    return range(side.cell.world_size)


def _read(folder: Path, side: Recording, log_request: LogRequest) -> list[OperationLog]:
    """Read all ranks' operation logs of a run: of its last logged segment if restarts split it."""
    segments = recorded_segments(side.cell, Window(log_request.step, log_request.step))
    sizes = tuple(segment.world_size for segment in segments)
    written_logs = [
        (number, place, rank)
        for number, place, rank in holders(folder, sizes)
        if path_of(place, rank).exists()
    ]
    last = max((number for number, *_ in written_logs), default=0)
    return [read_operations(place, rank) for number, place, rank in written_logs if number == last]
