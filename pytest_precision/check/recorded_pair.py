"""Make of two recordings on disk the pair that is compared: the same steps of the same tensors."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path

from pytest_precision.errors import RecordingError, expected_but_got, is_bad_input
from pytest_precision.matrix.tensor_key import from_any_module
from pytest_precision.parity.verdict import Ruling
from pytest_precision.recorders.scripts.recorded_part import SHOWN_NAMES
from pytest_precision.trace.header import FORWARDS
from pytest_precision.trace.lin8 import LIN8
from pytest_precision.trace.moment import INIT, STATE
from pytest_precision.trace.recording import Recording
from pytest_precision.trace.unfinished import readable_recording

__tracebackhide__ = is_bad_input

WEIGHT_KINDS = ("param", "used_param", "master")
"""Kinds of which each weight that is looked at shows one."""


def recorded_pair(candidate: Path, reference: Path, first_step: int) -> tuple[Recording, Recording]:
    """Read both recordings, and return the steps of each that are compared.

    Raises:
        RecordingError: see `compare_recordings`.
    """
    recordings = (
        readable_recording("candidate", candidate),
        readable_recording("reference", reference),
    )
    if first_step > 1:
        recordings = resumed_pair(*recordings, first_step)
    recordings = cut_pair(*recordings)
    expect_as_many_steps(*recordings)
    expect_the_same_part(*recordings)
    expect_one_digest(*recordings)
    return recordings


def resumed_pair(
    candidate: Recording, reference: Recording, step: int
) -> tuple[Recording, Recording]:
    """Return two recordings as of the same steps: the reference's from the one that is resumed.

    The state before them is the one that the step before has left, of which a start shows a part.

    Args:
        candidate: the run that was resumed.
        reference: the run that was not interrupted.
        step: of the reference, which the candidate's first one must agree with.

    Raises:
        RecordingError: the reference has no such step, or does not show the state before it.
    """
    steps = len(reference.cell.operations)
    expected = f"--from of a step from 1 to {steps}, those in {reference.trace.folder}"
    if step > steps:
        raise RecordingError(expected_but_got(expected, str(step)))
    if (manifest := reference.manifest) is not None and manifest.every > 1:
        raise RecordingError(
            expected_but_got(
                "a reference with the tensors of each step",
                f"--every={manifest.every} in {reference.trace.folder}",
                "record it without --every",
            )
        )
    before = (moment for moment in reference.trace.moments if moment.phase == STATE)
    start = next(moment for moment in before if moment.step == step - 1)
    kinds = candidate.trace.kinds_at(INIT) & reference.trace.kinds_at(start)
    cell = reference.cell.replace(sequence=f"train{steps - step + 1}")
    later_recording = replace(reference, cell=cell, trace=reference.trace.later(step, kinds))
    return replace(candidate, trace=candidate.trace.later(1, kinds)), later_recording


def cut_pair(candidate: Recording, reference: Recording) -> tuple[Recording, Recording]:
    """Return two recordings of as many steps, those that both have, if one was not finished.

    Raises:
        RecordingError: the last step of one of them was recorded in another way.
    """
    recordings = candidate, reference
    if not any(recording.endings for recording in recordings):
        return recordings
    options = {
        (recording.manifest.steps, recording.manifest.every)
        for recording in recordings
        if recording.manifest is not None
    }
    if len(options) > 1 and any(every > 1 for _, every in options):
        got = " and ".join(f"--steps={steps} --every={every}" for steps, every in sorted(options))
        advice = "record both with the same --steps and --every"
        raise RecordingError(expected_but_got("two recordings of the same steps", got, advice))
    steps = min(len(recording.cell.operations) for recording in recordings)
    return candidate.until(steps), reference.until(steps)


def as_far_as_compared(ruling: Ruling, recordings: Sequence[Recording]) -> Ruling:
    """Add to a ruling how many steps were compared, and why; a pass becomes an error.

    Nothing is known of the steps that were not recorded, so that a pass would hide an ending.
    """
    endings = [
        f"in the {recording.name}, {words}"
        for recording in recordings
        for words in recording.endings
    ]
    if not endings:
        return ruling
    steps = len(recordings[0].cell.operations)
    compared = f"compared until step {steps}"
    if ruling.outcome == "pass":
        first, *others = endings
        return Ruling(
            outcome="error", reason=f"{first}; {compared}, where both agree", details=tuple(others)
        )
    lines = (*endings, compared)
    brief = ruling.brief and (*lines, *ruling.brief)
    return replace(ruling, details=(*lines, *ruling.details), brief=brief)


def expect_as_many_steps(candidate: Recording, reference: Recording) -> None:
    """Raise if two recordings have different numbers of steps; forwards may be other batches.

    Raises:
        RecordingError: with both numbers.
    """
    ours, theirs = (len(recording.cell.operations) for recording in (candidate, reference))
    if ours != theirs and not is_of_forwards(candidate, reference):
        raise RecordingError(
            expected_but_got(
                "two recordings with the same number of train steps",
                f"{ours} in {candidate.trace.folder} and {theirs} in {reference.trace.folder}",
                _advice(ours, theirs),
            )
        )


def is_of_forwards(*sides: Recording) -> bool:
    """Return whether both sides are recordings of forwards, which may be other batches."""
    return all(FORWARDS in side.trace.header.environment for side in sides)


def _advice(ours: int, theirs: int) -> str:
    """Say how two recordings can have as many steps, also where one is of a run that resumed."""
    advice = f"record both with --steps {min(ours, theirs)}"
    if ours < theirs:
        first = theirs - ours + 1
        advice += (
            f"; if the candidate was resumed after step {first - 1} of the reference, compare it "
            f"with --from {first}, or test both in one cell, with @script(resume=function)"
        )
    return advice


def expect_the_same_part(candidate: Recording, reference: Recording) -> None:
    """Raise if two recordings have different selections of tensors or steps.

    A pattern that no weight has matched is refused, too, since nothing would be compared. Ranks
    cannot tell, each of which may have a stage of its own.

    Raises:
        RecordingError: with the options of both, or with the pattern.
    """
    parts = [
        shlex.join([*(f"--only={pattern}" for pattern in only), f"--every={every}"])
        for only, every in (
            (recording.manifest.only, recording.manifest.every)
            for recording in (candidate, reference)
            if recording.manifest is not None
        )
    ]
    if len({*parts}) > 1:
        ours, theirs = parts
        raise RecordingError(
            expected_but_got(
                "two recordings of the same tensors and steps",
                f"{ours} in {candidate.trace.folder} and {theirs} in {reference.trace.folder}",
                "record both with the same --only and --every",
            )
        )
    patterns = candidate.manifest.only if candidate.manifest is not None else ()
    names = _names(candidate, WEIGHT_KINDS) if patterns else {}
    for pattern in patterns:
        # A pattern may begin with the names of wrappers, which recordings leave out.
        telling = [name for name in from_any_module(pattern) if name.strip("*?.")]
        if not any(fnmatchcase(*pair) for pair in product(names, telling)):
            parameters = [*_names(candidate, ("lr",))][:SHOWN_NAMES]  # of all, always there
            raise RecordingError(
                expected_but_got(
                    "--only to match the name of a weight",
                    f"{pattern!r} in {candidate.trace.folder}",
                    f"there are {', '.join(parameters)} and others; record both again",
                )
            )


def _names(recording: Recording, kinds: tuple[str, ...]) -> dict[str, None]:
    """Return the names of a recording's tensors of these kinds, such as `param`."""
    moments, trace = recording.trace.moments, recording.trace
    return dict.fromkeys(entry.name for m in moments for entry in trace.entries(m, kinds))


def expect_one_digest(candidate: Recording, reference: Recording) -> None:
    """Raise if two recordings have digests of different names, of which nobody can say more.

    Raises:
        RecordingError: with both names, and with the command that records one of them again.
    """
    recordings = [recording for recording in (candidate, reference) if _has_digests(recording)]
    if len({recording.trace.header.digest for recording in recordings}) < 2:
        return
    candidate_trace, reference_trace = (recording.trace for recording in recordings)
    again = next(recording for recording in recordings if recording.trace.header.digest != LIN8)
    assert again.manifest is not None
    raise RecordingError(
        expected_but_got(
            "two recordings with the same digest",
            f"{candidate_trace.header.digest} in {candidate_trace.folder} and "
            f"{reference_trace.header.digest} "
            f"in {reference_trace.folder}",
            f"record {again.trace.folder} anew with {again.manifest.again(digest=LIN8)}",
        )
    )


def _has_digests(recording: Recording) -> bool:
    """Return whether a recording has a digest by its own name, and not values of all tensors."""
    trace = recording.trace
    kinds = (kind for moment in trace.moments for kind in trace.kinds_at(moment, digested=True))
    return any(trace.digest_name(kind) == trace.header.digest for kind in kinds)
