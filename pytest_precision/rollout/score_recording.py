"""Record what a side shows as it scores, for `compare`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pytest_precision.engine.observation import Observation, whole
from pytest_precision.parity.compare.bounds import Noise
from pytest_precision.rollout.casts import Cast
from pytest_precision.rollout.engine_names import NameMap
from pytest_precision.rollout.expected_weights import SyncTerms
from pytest_precision.rollout.honest_noise import honest_noise
from pytest_precision.rollout.inference_weights import Weights
from pytest_precision.rollout.score_check import ids_of
from pytest_precision.rollout.score_folder import ScoreRecorder, calls_recorded
from pytest_precision.rollout.score_gates import with_planted
from pytest_precision.rollout.scorer import Scorer, Scores
from pytest_precision.rollout.shown_weights import of_table, of_weights
from pytest_precision.trace.header import SCORES

IDS, MODULE, WAY, PLANTED = "ids", "module", "way", "planted"
"""First words of the names of `output`: the ids of a sequence, a module, how far an honest way is
off, and the log-probabilities of a sequence with a planted weight."""

_open: list[ScoreRecorder] = []


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
        shown = [*of_scores(scores, ids)]
        if honest_ways:
            shown += of_noise(scorer, ids, honest_ways, cast)
        table = scorer.table
        shown += [] if table is None else of_table(table)
        delivered = any(declaration is not None for declaration in (cast, names, history))
        weights = [] if table is None else [*of_weights(table, declared, delivered=delivered)]
        for recorder in _open:
            recorder.add(shown, weights)
    return scores.logprobs


@contextmanager
def recording_scores(
    folder: Path, script: Path, arguments: Sequence[str]
) -> Iterator[ScoreRecorder]:
    """Record what `show_scores` is called with in the block.

    Raises:
        RecordingError: nothing was shown.
        FileExistsError: the folder has a recording.
    """
    absent = f"scores but got none of {script}; call show_scores of pytest_precision.rollout in it"
    with calls_recorded(folder, script, arguments, SCORES, absent) as recorder:
        _open.append(recorder)
        try:
            yield recorder
        finally:
            _open.remove(recorder)


def of_scores(scores: Scores, sequences: Sequence[Tensor]) -> Iterator[Observation]:
    """Yield what a side has scored: ids, log-probabilities, outputs and choices."""
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


def of_noise(
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
