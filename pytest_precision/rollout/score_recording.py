"""Record what a side shows as it scores, for `compare`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.observation import Chunk, Observation, whole
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.matrix.cell import Cell
from pytest_precision.probes.lost_updates.measured import UpdateMeter
from pytest_precision.recorders.run_environment import environment_of
from pytest_precision.rollout.casts import Cast, cast_by
from pytest_precision.rollout.inference_weights import WeightTable
from pytest_precision.rollout.score_check import ids_of
from pytest_precision.rollout.scorer import Scorer, Scores
from pytest_precision.trace.data_log import write_data
from pytest_precision.trace.lin8 import LIN8
from pytest_precision.trace.manifest import Manifest
from pytest_precision.trace.moment import END, INIT, Moment
from pytest_precision.trace.named_digests import digested
from pytest_precision.trace.reader import Header
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
def recording_scores(folder: Path, script: Path, arguments: Sequence[str]) -> Iterator[None]:
    """Record what `show_scores` is called with in the block; of several ranks, the first records.

    Raises:
        RecordingError: nothing was shown.
        FileExistsError: the folder has a recording.
    """
    if int(os.environ.get("RANK") or 0):
        with _opened(ScoreRecorder(None)):
            yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with TraceWriter(folder, 0, digest_name=LIN8) as writer:
        recorder = ScoreRecorder(writer)
        with _opened(recorder):
            yield
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
def _opened(recorder: ScoreRecorder) -> Iterator[None]:
    _open.append(recorder)
    try:
        yield
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
    for name, experts, margins in scores.outputs.stored_choices():
        yield whole("decision", name, experts)
        yield whole("margin", name, margins)


def _of_weights(table: WeightTable, cast: Cast) -> Iterator[Observation]:
    for name, tensor in table.tensors.items():
        if isinstance(tensor, str):
            yield digested_elsewhere("weight", name, tensor)
            continue
        for ending, part in cast_by(cast, name, tensor).items():
            yield digested(whole("weight", name + ending, part), LIN8)


def digested_elsewhere(kind: str, name: str, text: str) -> Observation:
    """Return an observation of a tensor of which only a digest is there.

    Args:
        kind: see `Observation`.
        name: of the tensor.
        text: dtype, shape and digest, see `weight_digest`.

    Raises:
        ValueError: the text has not these three.
    """
    match = re.fullmatch(r"(\w+) \[((?:\d+(?:, )?)*)\] ([0-9a-f]{32})", text)
    dtype = None if match is None else getattr(torch, match[1], None)
    if match is None or not isinstance(dtype, torch.dtype):
        expected = f"dtype, shape and digest of {name}, such as 'bfloat16 [2, 3] 0123...',"
        raise ValueError(expected_but_got(expected, repr(text)))
    shape = tuple(map(int, match[2].split(", "))) if match[2] else ()
    tensor = torch.empty(shape, dtype=dtype, device="meta")
    place = Chunk((0,) * len(shape), shape)
    return Observation(kind, name, tensor, shape, place, digest=match[3])
