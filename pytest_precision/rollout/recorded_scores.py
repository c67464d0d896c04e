"""Compare two recordings of scores, call by call."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.verdict import Ruling
from pytest_precision.rollout.inference_weights import WeightTable, weight_digest
from pytest_precision.rollout.module_outputs import ModuleOutputs
from pytest_precision.rollout.score_check import figures_of
from pytest_precision.rollout.score_gates import ruled_scores
from pytest_precision.rollout.score_recording import RECORDED
from pytest_precision.rollout.scored_case import ScoredCase, Shown
from pytest_precision.rollout.scorer import Scores
from pytest_precision.rollout.token_rows import TokenRows
from pytest_precision.rollout.weight_sync import SyncTerms
from pytest_precision.trace.recording import Recording

CHOICES = ("decision", "margin")
"""Kinds by which a router's choices are shown, in this order."""


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
    choices: dict[str, list[Tensor]] = {}
    outputs = ModuleOutputs(TokenRows([]))
    for moment in trace.moments:
        for entry in trace.entries(moment) if moment.step == step else ():
            first, _, name = entry.name.partition(" ")
            if entry.kind == "weight":
                plain = f"{entry.dtype} {[*entry.piece]} {entry.digest}"
                weights[entry.name] = plain if entry.digest else weight_digest(trace.tensor(entry))
            elif entry.kind == "logprob":
                logprobs[int(name)] = trace.tensor(entry)
            elif entry.kind in CHOICES:
                choices.setdefault(entry.name, []).append(trace.tensor(entry))
            elif first == "ids":
                ids.append(trace.tensor(entry))
            else:
                outputs.restore(name, first, trace.tensor(entry))
    for router, shown in choices.items():
        outputs.restore_choices(router, *shown)
    table = WeightTable(weights) if weights else None
    rows = [row.tolist() for row in ids]
    return Shown({"recorded": Scores(logprobs, TokenRows([]), outputs, rows)}, table), ids
