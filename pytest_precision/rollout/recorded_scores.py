"""Compare two recordings of scores: call by call, or token by token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pytest_precision.engine.kinds import SCORED_KINDS
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.verdict import Ruling
from pytest_precision.rollout.expected_weights import SyncTerms
from pytest_precision.rollout.inference_weights import WeightTable, weight_digest
from pytest_precision.rollout.score_check import figures_of
from pytest_precision.rollout.score_gates import ruled_scores
from pytest_precision.rollout.scored_case import ScoredCase
from pytest_precision.rollout.shown_call import ShownCall
from pytest_precision.rollout.token_alignment import (
    JoinedForwards,
    by_tokens,
    by_weights,
    same_batches,
)
from pytest_precision.rollout.weight_causes import WEIGHT_NAME
from pytest_precision.trace.recording import Recording


def compare_scores(
    candidate: Recording, reference: Recording, criteria: Criteria
) -> tuple[Ruling, dict[str, Any]]:
    """Rule on two recordings of scores, case by case; return the ruling, and figures.

    Raises:
        RecordingError: one of them is no recording of scores, or they have not as many forwards.
    """
    for side in (candidate, reference):
        if not {*side.trace.dtypes()} <= SCORED_KINDS:
            got = f"one of train steps in {side.trace.folder}"
            raise RecordingError(expected_but_got("two recordings of scores", got))
    ruling, figures = Ruling(), {}
    for where, lacking, case in _cases(calls_of(candidate), calls_of(reference), criteria):
        ruling, figures = ruled_scores(case), figures_of(case)
        ruling = replace(ruling, details=(*lacking, *ruling.details))
        if ruling.outcome != "pass":
            return replace(ruling, details=(*where, *ruling.details)), figures
    return ruling, figures


def calls_of(side: Recording) -> list[ShownCall]:
    """Return all calls of a recording, in their order."""
    return [ShownCall(side, step) for step in range(1, side.trace.moments[-1].step + 1)]


def _cases(
    ours: Sequence[ShownCall], theirs: Sequence[ShownCall], criteria: Criteria
) -> Iterator[tuple[list[str], list[str], ScoredCase]]:
    """Yield what is compared, each with lines that say where it is, and what is not compared."""
    by_token = all(call.forwards and call.has_ids for call in (*ours, *theirs))
    if by_token and not same_batches(ours, theirs):
        yield from _cases_by_token(ours, theirs, criteria)
        return
    if len(ours) != len(theirs):
        got = f"{len(ours)} and {len(theirs)}, of which some have no ids to find their tokens by"
        advice = f"record both with --steps {min(len(ours), len(theirs))}"
        raise RecordingError(expected_but_got("as many forwards on both sides", got, advice))
    for number, (call, golden) in enumerate(zip(ours, theirs, strict=True), 1):
        where = [f"at call {number} of {len(ours)}"] if len(ours) > 1 else []
        yield where, [], _case(call, golden, criteria)


def _case(ours: ShownCall, theirs: ShownCall, criteria: Criteria) -> ScoredCase:
    mute = [call.side.name for call in (ours, theirs) if not call.scored]
    return ScoredCase(
        ours.shown(),
        theirs.shown(),
        theirs.sequences or ours.sequences,
        criteria,
        SyncTerms(),
        measured=theirs.measured,
        planted=theirs.planted,
        unscored=f"the {' and the '.join(mute)} shows none" if mute else "",
    )


def _cases_by_token(
    ours: Sequence[ShownCall], theirs: Sequence[ShownCall], criteria: Criteria
) -> Iterator[tuple[list[str], list[str], ScoredCase]]:
    """Yield a case for all forwards with the same weights, in the order of their first ones.

    A side that holds fewer of them goes on with its last ones, which are then those that differ.
    """
    candidate, reference = by_weights(ours), by_weights(theirs)
    number = max(len(candidate), len(reference))
    for turn in range(number):
        sides = [groups[min(turn, len(groups) - 1)] for groups in (candidate, reference)]
        joined = by_tokens(*sides)
        where = [f"with the weights {turn + 1} of {number}"] if number > 1 else []
        had = f"{joined.absent} of {len(joined.sequences)} sequences of the reference"
        lacking = [f"{had} are not among those of the candidate"] if joined.absent else []
        golden = joined.reference._replace(table=knowing_former(reference[: turn + 1]))
        shown = next(iter(joined.reference.scores.values())).logprobs
        yield (
            where,
            lacking,
            ScoredCase(
                joined.candidate,
                golden,
                joined.sequences,
                criteria,
                SyncTerms(),
                unscored="" if shown else "the two sides score no token in common",
                measured={way: off for call in theirs for way, off in call.measured.items()},
                planted=joined.planted,
                parted=joined.parted,
            ),
        )


def knowing_former(groups: Sequence[JoinedForwards]) -> WeightTable | None:
    """Return the weights of the last forwards, which know those of earlier ones of the same side.

    Args:
        groups: of the side, up to those that are compared.
    """
    tables = [group.calls[0].table() for group in groups]
    last = tables[-1]
    if last is None:
        return None
    wrong: dict[str, dict[str, str]] = {}
    for number, table in enumerate(tables[:-1], 1):
        former = {} if table is None else table.tensors
        words = f"stale: {WEIGHT_NAME} holds the weights {number} of the reference"
        for name, weight in former.items():
            digest = weight if isinstance(weight, str) else weight_digest(weight)
            wrong.setdefault(name, {})[digest] = words
    return last._replace(wrong=wrong)
