"""Record what a side shows as it scores, and compare two such recordings."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pytest_precision._progress import advance
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.observation import Observation, whole
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.matrix.cell import Cell
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.verdict import Ruling
from pytest_precision.probes.lost_updates.measured import UpdateMeter
from pytest_precision.recorders.run_environment import environment_of
from pytest_precision.rollout.casts import Cast, cast_by
from pytest_precision.rollout.inference_weights import WeightTable, weight_digest
from pytest_precision.rollout.module_outputs import ModuleOutputs
from pytest_precision.rollout.score_check import figures_of, ids_of
from pytest_precision.rollout.score_gates import ruled_scores
from pytest_precision.rollout.scored_case import ScoredCase, Shown
from pytest_precision.rollout.scorer import Scorer, Scores
from pytest_precision.rollout.token_rows import TokenRows
from pytest_precision.rollout.weight_sync import SyncTerms
from pytest_precision.trace.data_log import write_data
from pytest_precision.trace.manifest import Manifest
from pytest_precision.trace.moment import END, INIT, Moment
from pytest_precision.trace.reader import Header
from pytest_precision.trace.recording import Recording
from pytest_precision.trace.writer import TraceWriter

RECORDED = "scores"
"""The key in a header's environment that `compare` knows a recording of scores by."""

_open: list[ScoreRecorder] = []


class ScoreRecorder:
    """Writes what sides show into a folder, one step a call of `show_scores`.

    Args:
        writer: of the trace; None on a rank that only takes part in what all ranks compute.
    """

    def __init__(self, writer: TraceWriter | None) -> None:
        self._writer = writer
        self.calls = 0
        self._write(INIT, [])

    def add(self, side: Scorer, scores: Scores, sequences: Sequence[Tensor], cast: Cast) -> None:
        """Write the scores of a side, and what it holds after the declared cast."""
        self.calls += 1
        shown: dict[str, list[Observation]] = {phase: [] for phase in STEP_PHASES}
        shown[STEP_PHASES[0]] = [*_of_scores(scores, sequences)]
        table = side.table
        shown[STEP_PHASES[-1]] = [] if table is None else [*_of_weights(table, cast)]
        for phase, observations in shown.items():
            moment = Moment(self.calls - 1, "train", self.calls, phase)
            self._write(moment, observations)
        advance(self.calls, None, 0 if self._writer is None else self._writer.nbytes)

    def end(self) -> None:
        """Write the moment after the last step, at which nothing is shown."""
        self._write(Moment(self.calls - 1, "train", self.calls, END), [])

    def _write(self, moment: Moment, observations: Sequence[Observation]) -> None:
        if self._writer is not None:
            self._writer.add(moment, observations, digests=moment.phase == STEP_PHASES[-1])


def show_scores(side: Any, *, sequences: Any, cast: Cast = None) -> dict[int, Tensor]:
    """Score sequences, and record it where `python -m pytest_precision score` runs this file.

    Args:
        side: a model, a function of the sequences, or a `Scorer`.
        sequences: ids of each.
        cast: what the engine does to a weight of this side, the trainer's.

    Returns:
        the log-probabilities of each sequence.
    """
    scorer, ids = Scorer.of("side", side), ids_of(sequences)
    scores = scorer.scores(ids)
    for recorder in _open:
        recorder.add(scorer, scores, ids, cast)
    return scores.logprobs


@contextmanager
def recording_scores(
    folder: Path, script: Path, arguments: Sequence[str]
) -> Iterator[ScoreRecorder]:
    """Record what `show_scores` is called with in the block; of several ranks, the first records.

    Raises:
        RecordingError: nothing was shown.
        FileExistsError: the folder has a recording.
    """
    if int(os.environ.get("RANK") or 0):
        with _opened(ScoreRecorder(None)) as recorder:
            yield recorder
        return
    folder.mkdir(parents=True, exist_ok=True)
    with TraceWriter(folder, 0) as writer:
        with _opened(ScoreRecorder(writer)) as recorder:
            yield recorder
        if not recorder.calls:
            advice = "call show_scores of pytest_precision.rollout in it"
            raise RecordingError(expected_but_got("scores", f"none of {script}", advice))
        recorder.end()
        Manifest.now(script, arguments, recorder.calls, ()).write(folder, 1)
        write_data(folder, 0)
        UpdateMeter().write(folder, 0)
        writer.finish(Header(1, {}, environment_of(Cell()) | {RECORDED: str(recorder.calls)}))
        Manifest.seal(folder, 0, 1)


@contextmanager
def _opened(recorder: ScoreRecorder) -> Iterator[ScoreRecorder]:
    _open.append(recorder)
    try:
        yield recorder
    finally:
        _open.remove(recorder)


def _of_scores(scores: Scores, sequences: Sequence[Tensor]) -> Iterator[Observation]:
    for number, ids in enumerate(sequences):
        said = ids if scores.ids is None else torch.tensor(scores.ids[number])
        yield whole("output", f"ids {number}", said)
    for number, logprobs in scores.logprobs.items():
        yield whole("logprob", f"sequence {number}", logprobs)
    for name, dtype, table in scores.outputs.stored():
        yield whole("output", f"{dtype} {name}", table)


def _of_weights(table: WeightTable, cast: Cast) -> Iterator[Observation]:
    for name, tensor in table.tensors.items():
        if isinstance(tensor, Tensor):
            for ending, part in cast_by(cast, name, tensor).items():
                yield whole("weight", name + ending, part)


def compare_scores(
    candidate: Recording, reference: Recording, criteria: Criteria
) -> tuple[Ruling, dict[str, Any]]:
    """Rule on two recordings of scores, call by call; return the ruling, and figures.

    Raises:
        RecordingError: one of them is no recording of scores.
    """
    for side in (candidate, reference):
        if RECORDED not in side.trace.header.environment:
            got = f"one of train steps in {side.trace.folder}"
            raise RecordingError(expected_but_got("two recordings of scores", got))
    ruling, figures = Ruling(), {}
    for step in range(1, candidate.trace.moments[-1].step + 1):
        ours, _ = _shown(candidate, step)
        theirs, sequences = _shown(reference, step)
        case = ScoredCase(ours, theirs, sequences, criteria, SyncTerms())
        ruling, figures = ruled_scores(case), figures_of(case)
        if ruling.outcome != "pass":
            break
    return ruling, figures


def _shown(side: Recording, step: int) -> tuple[Shown, list[Tensor]]:
    """Return what a side has shown in one call, and the ids of its sequences."""
    trace = side.trace
    logprobs: dict[int, Tensor] = {}
    ids: list[Tensor] = []
    weights: dict[str, Tensor | str] = {}
    outputs = ModuleOutputs(TokenRows([]))
    for moment in trace.moments:
        for entry in trace.entries(moment) if moment.step == step else ():
            first, _, name = entry.name.partition(" ")
            if entry.kind == "weight":
                plain = f"{entry.dtype} {[*entry.piece]} {entry.digest}"
                weights[entry.name] = plain if entry.digest else weight_digest(trace.tensor(entry))
            elif entry.kind == "logprob":
                logprobs[int(name)] = trace.tensor(entry)
            elif first == "ids":
                ids.append(trace.tensor(entry))
            else:
                outputs.restore(name, first, trace.tensor(entry))
    table = WeightTable(weights) if weights else None
    rows = [row.tolist() for row in ids]
    return Shown({"recorded": Scores(logprobs, TokenRows([]), outputs, rows)}, table), ids
