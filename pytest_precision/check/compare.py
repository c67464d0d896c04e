"""Compare two recordings on disk, which may have been made on other machines."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path, PurePath
from pkgutil import resolve_name
from typing import Any

from pytest_precision.check.case import Case
from pytest_precision.check.gate_order import gates_of
from pytest_precision.check.gates import ruled
from pytest_precision.check.preconditions import distinct
from pytest_precision.check.recorded_pair import as_far_as_compared, recorded_pair
from pytest_precision.check.terms import Terms
from pytest_precision.engine.kinds import SCORED_KINDS
from pytest_precision.errors import RecordingError, expected_but_got, is_bad_input
from pytest_precision.matrix.cell import AxisValue
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.verdict import Verdict
from pytest_precision.trace.header import FORWARDS, SCORES
from pytest_precision.trace.manifest import AGAIN
from pytest_precision.trace.recording import Recording
from pytest_precision.trace.remote_folder import RemoteFolder, at_hand

__tracebackhide__ = is_bad_input

TOLD_ELSEWHERE = ("command", "date", "files", "steps", "values", "versions")
"""What a manifest says that need not be equal, or is said by others."""


def compare_recordings(
    candidate: Path | RemoteFolder,
    reference: Path | RemoteFolder,
    terms: Terms,
    nodeid: str,
    axes: Mapping[str, AxisValue] | None = None,
    repeat: str = "",
    first_step: int = 1,
    *,
    ranks: bool = False,
) -> Verdict:
    """Compare two recordings on disk, and return the same kind of verdict as `parity.check`.

    Args:
        candidate: the folder, or address, of the recording under test.
        reference: that of the one that it must agree with.
        terms: what the candidate is held to.
        nodeid: name of the check.
        axes: those of the cell that the check belongs to; without one, what the candidate's
            recording says.
        repeat: the command that compares again.
        first_step: step of the reference that the candidate's first one must agree with.
        ranks: whether the verdict has host and device of each rank.

    Raises:
        RecordingError: a folder holds no whole recording, or the two cannot be compared.
    """
    try:
        with ExitStack() as copies:
            ours, theirs = map(copies.enter_context, map(at_hand, (candidate, reference)))
            theirs = ours if str(candidate) == str(reference) else theirs
            verdict = _compare(ours, theirs, terms, nodeid, axes, repeat, first_step, ranks=ranks)
        return replace(verdict, candidate=str(candidate), reference=str(reference))
    except RecordingError:
        raise
    except Exception as error:
        raise RecordingError(
            expected_but_got(
                "two recordings that can be compared",
                f"{type(error).__name__} from {candidate} and {reference}: {error}",
                AGAIN,
            )
        ) from error


def _compare(
    candidate: Path,
    reference: Path,
    terms: Terms,
    nodeid: str,
    axes: Mapping[str, AxisValue] | None,
    repeat: str,
    first_step: int,
    *,
    ranks: bool,
) -> Verdict:
    started = time.perf_counter()
    recordings = recorded_pair(candidate, reference, first_step)
    if first_step > 1 or any(recording.endings for recording in recordings):
        # Logs of operations count the steps of their own run, and are written at its end.
        terms = terms._replace(lines=False)
    same = candidate.resolve() == reference.resolve()
    if is_of_scores(*recordings):
        compare_scores = resolve_name("pytest_precision.rollout.recorded_scores:compare_scores")
        ruling, figures = compare_scores(*recordings, terms.criteria)
        ruling = distinct(same, "recording") or ruling
    else:
        expect_no_noise(terms.criteria)
        for recording in recordings:
            expect_values(recording, terms.criteria)
        case = Case(*recordings, terms)
        ruling = distinct(same, "recording") or ruled(
            case, gates_of(terms.registered, recordings=True)
        )
        figures = case.figures() | dict(ruling.figures)
    ruling = as_far_as_compared(ruling, recordings)
    cell = recordings[0].cell
    apart = tuple(made_otherwise(*recordings))
    if first_step > 1:
        apart = (f"step 1 here is step {first_step} of the reference", *apart)
    brief = ruling.brief and (*apart, *ruling.brief)
    figures["recorded"] = {recording.name: _how(recording, ranks=ranks) for recording in recordings}
    figures["seconds"] = time.perf_counter() - started
    return Verdict(
        nodeid=nodeid,
        axes=dict(axes or {"world_size": cell.world_size, "sequence": cell.sequence}),
        candidate=str(candidate),
        reference=str(reference),
        workload="",
        criterion=str(terms.criteria),
        ruling=replace(ruling, details=(*apart, *ruling.details), brief=brief),
        command=repeat,
        figures=figures,
    )


def is_of_scores(*sides: Recording) -> bool:
    """Return whether a side was recorded as it scored, or both show no more than such sides do."""
    if any({SCORES, FORWARDS} & side.trace.header.environment.keys() for side in sides):
        return True
    kinds = [{*side.trace.dtypes()} for side in sides]
    return all(shown and shown <= SCORED_KINDS for shown in kinds)


def _how(recording: Recording, *, ranks: bool) -> dict[str, Any]:
    """Return script, arguments, revision and date of a recording, without folders of this machine.

    Args:
        recording: the recording.
        ranks: whether it is said where each rank ran.
    """
    manifest = recording.manifest
    assert manifest is not None
    script, folder = PurePath(manifest.script), Path.cwd()
    return {
        "script": str(script.relative_to(folder) if script.is_relative_to(folder) else script),
        "arguments": list(manifest.arguments),
        "revision": manifest.revision,
        "date": manifest.date,
        **({"ranks": [place.with_serial for place in recording.trace.places]} if ranks else {}),
    }


def made_otherwise(candidate: Recording, reference: Recording) -> Iterator[str]:
    """Yield in words each difference in how two recordings were made, such as a version."""
    ours, theirs = _conditions(candidate), _conditions(reference)
    for name in dict.fromkeys([*ours, *theirs]):
        if ours.get(name) != theirs.get(name):
            candidate_value, reference_value = (
                _shown(conditions.get(name)) for conditions in (ours, theirs)
            )
            yield f"{name}: {candidate_value} here, {reference_value} in the reference"


def expect_values(recording: Recording, criteria: Criteria) -> None:
    """Raise if a tolerance applies to tensors of which a recording keeps only hashes.

    Raises:
        RecordingError: with the first of them, and with the command that keeps values.
    """
    for moment in recording.trace.moments if not criteria.bitwise else ():
        for entry in recording.trace.entries(moment):
            rule = criteria.of_tensor(entry.kind, entry.name)
            if entry.digest and rule.criterion.tolerates:
                assert recording.manifest is not None
                raise RecordingError(
                    expected_but_got(
                        f"values of all steps for {rule.criterion}",
                        f"a digest of {entry.kind} {entry.name} at step {moment.step} in "
                        f"{recording.trace.folder}",
                        "record it with "
                        f"{recording.manifest.again(f'0-{recording.manifest.steps}')}",
                    )
                )


def expect_no_noise(criteria: Criteria) -> None:
    """Raise for the criterion `noise()`, which needs more runs than two recordings have.

    Raises:
        RecordingError: with what to use instead.
    """
    if criteria.noise_runs:
        raise RecordingError(
            expected_but_got(
                "criteria that work with two recordings",
                f"{criteria}",
                "noise() trains the reference again: use it in parity.check, or norm(rel=) here",
            )
        )


def _conditions(recording: Recording) -> dict[str, Any]:
    assert recording.manifest is not None
    conditions = (
        asdict(recording.manifest)
        | recording.trace.header.environment
        | recording.manifest.versions
    )
    return {name: value for name, value in conditions.items() if name not in TOLD_ELSEWHERE}


def _shown(value: Any) -> str:
    return (" ".join(map(str, value)) if isinstance(value, tuple) else str(value or "")) or "none"
