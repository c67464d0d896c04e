"""Record what a side shows as it scores, for `compare`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.observation import Observation, whole
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.matrix.cell import Cell
from pytest_precision.parity.compare.bounds import Noise
from pytest_precision.probes.lost_updates.measured import UpdateMeter
from pytest_precision.recorders.run_environment import environment_of
from pytest_precision.rollout.casts import Cast
from pytest_precision.rollout.engine_names import NameMap
from pytest_precision.rollout.expected_weights import SyncTerms
from pytest_precision.rollout.honest_noise import honest_noise
from pytest_precision.rollout.inference_weights import Weights
from pytest_precision.rollout.score_check import ids_of
from pytest_precision.rollout.score_gates import with_planted
from pytest_precision.rollout.scorer import Scorer, Scores
from pytest_precision.rollout.shown_weights import of_weights
from pytest_precision.trace.data_log import write_data
from pytest_precision.trace.lin8 import LIN8
from pytest_precision.trace.manifest import Manifest
from pytest_precision.trace.moment import END, INIT, Moment
from pytest_precision.trace.reader import Header
from pytest_precision.trace.writer import TraceWriter

RECORDED = "scores"
"""The key in a header's environment that `compare` knows a recording of scores by."""

IDS, MODULE, WAY, PLANTED = "ids", "module", "way", "planted"
"""First words of the names of `output`: the ids of a sequence, a module, how far an honest way is
off, and the log-probabilities of a sequence with a planted weight."""

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

    def add(self, scores: Sequence[Observation], weights: Sequence[Observation]) -> None:
        """Write what one call has shown."""
        self.calls += 1
        shown: dict[str, Sequence[Observation]] = dict.fromkeys(STEP_PHASES, ())
        shown |= {STEP_PHASES[0]: scores, STEP_PHASES[-1]: weights}
        for phase, observations in shown.items():
            moment = Moment(self.calls - 1, "train", self.calls, phase)
            self._write(moment, observations)

    def end(self) -> None:
        """Write the moment after the last step, at which nothing is shown."""
        self._write(Moment(self.calls - 1, "train", self.calls, END), [])

    def _write(self, moment: Moment, observations: Sequence[Observation]) -> None:
        if self._writer is not None:
            self._writer.add(moment, observations, digests=moment.phase == STEP_PHASES[-1])


def show_scores(
    side: Any,
    *,
    sequences: Any,
    cast: Cast = None,
    names: NameMap = None,
    history: Mapping[int, Weights] | None = None,
    honest_ways: int = 0,
) -> dict[int, Tensor]:
    """Score sequences, and record it where `python -m pytest_precision score` runs this file.

    Args:
        side: a model, a function of the sequences, or a `Scorer`.
        sequences: ids of each.
        cast: what the engine does to a weight of this side, the trainer's.
        names: how the engine's tensors are made of this side's: a recipe's name or a dict.
        history: step to the weights that this side held then, see `weight_snapshot`. With this, or
            with a cast or names, the recording has the digests of known mistakes, so that `compare`
            can name them.
        honest_ways: how many honest ways of the model are measured, which is what `noise()` of
            `compare` allows.

    Returns:
        the log-probabilities of each sequence.

    Raises:
        TypeError, ValueError: see `parity.score`.
    """
    scorer, ids = Scorer.of("side", side), ids_of(sequences)
    declared = SyncTerms(cast, names, history or {})
    scores = scorer.scores(ids)
    if _open:
        shown = [*_of_scores(scores, ids)]
        if honest_ways:
            shown += _of_noise(scorer, ids, honest_ways, cast)
        table = scorer.table
        delivered = any(declaration is not None for declaration in (cast, names, history))
        weights = [] if table is None else [*of_weights(table, declared, delivered=delivered)]
        for recorder in _open:
            recorder.add(shown, weights)
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
        yield whole("output", f"{IDS} {number}", said)
    for number, logprobs in scores.logprobs.items():
        yield whole("logprob", f"sequence {number}", logprobs)
    for words, table in scores.outputs.stored():
        yield whole("output", f"{MODULE} {words}", table)
    for name, experts, margins in scores.outputs.stored_choices():
        yield whole("decision", name, experts)
        yield whole("margin", name, margins)


def _of_noise(
    side: Scorer, sequences: list[Tensor], number: int, cast: Cast
) -> Iterator[Observation]:
    """Yield how far honest ways are apart, and the scores with a planted weight, for the bound."""
    noise = honest_noise(side, sequences, Noise(runs=number), cast)
    for way, largest in noise.largest.items():
        yield whole("output", f"{WAY} {way}", torch.tensor(largest, dtype=torch.float64))
    assert side.model is not None
    name, scores = with_planted(side, side.model, sequences)
    for number, logprobs in scores.logprobs.items():
        yield whole("output", f"{PLANTED} {number} {name}", logprobs)
