"""Have two sides score the same sequences, and rule on what they show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pytest_precision.errors import expected_but_got, is_bad_input, named
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.verdict import Ruling
from pytest_precision.rollout.expected_weights import SyncTerms
from pytest_precision.rollout.module_differences import choice_differences, module_differences
from pytest_precision.rollout.score_gates import ruled_scores
from pytest_precision.rollout.scored_case import ScoredCase, Shown
from pytest_precision.rollout.scorer import Scorer
from pytest_precision.rollout.token_statistics import statistics_of

__tracebackhide__ = is_bad_input


def score_check(
    candidate: Any,
    reference: Any,
    sequences: Any,
    ways: Sequence[str],
    criteria: Criteria,
    declared: SyncTerms,
) -> tuple[Ruling, dict[str, Any]]:
    """Score by both sides and compare; return the ruling, and figures for report.json.

    Raises:
        TypeError, ValueError: a side, a way or the sequences are none.
    """
    ours, theirs = Scorer.of("candidate", candidate), Scorer.of("reference", reference)
    ids = ids_of(sequences)
    sides = {way: ours.by(way) for way in ways} or {ours.way: ours}
    if all(side.same(theirs) for side in sides.values()):
        reason = "the candidate and the reference are the same callable, which always agrees"
        return Ruling(outcome="vacuous", reason=reason, gate="distinct"), {}
    golden = Shown({theirs.way: theirs.scores(ids)}, theirs.table)
    shown = Shown({way: side.scores(ids) for way, side in sides.items()}, ours.table)
    case = ScoredCase(shown, golden, ids, criteria, declared, (ours, theirs))
    return ruled_scores(case), figures_of(case)


def ids_of(sequences: Any) -> list[Tensor]:
    """Return sequences of ids as tensors.

    Raises:
        ValueError: there are none, or one has no second token, of which something is scored.
        TypeError: they are no ids.
    """
    if sequences is None:
        got = named("sequences", sequences)
        raise TypeError(expected_but_got("sequences of ids", got, "give lists of ids"))
    rows = [torch.as_tensor(row).detach().cpu() for row in sequences]
    for number, row in enumerate(rows):
        if row.is_floating_point() or row.ndim != 1:
            got = named(f"sequences[{number}]", row)
            raise TypeError(expected_but_got("a row of ids", got, "give lists of ids"))
        if len(row) < 2:
            got = f"{len(row)} in sequence {number}"
            raise ValueError(expected_but_got("two tokens at least in each sequence", got))
    if not rows:
        raise ValueError(expected_but_got("one sequence at least", "none"))
    return [row.long() for row in rows]


def figures_of(case: ScoredCase) -> dict[str, Any]:
    """Return the figures of a comparison, as they stand in report.json under `rollout`."""
    ways = {way: _way_figures(case, way) for way in case.candidate.scores}
    tokens = sum(len(pair[0]) for way in ways for pair in case.pairs(way).values())
    weights = None
    if case.sync is not None:
        weights = {
            "compared": len(case.sync.compared),
            "differing": [finding.words for finding in case.sync.findings],
        }
    noise = vars(case).get("noise")  # a check that ends before its bound is asked for has none
    bound = None if noise is None else noise.bound.atol
    rollout = {"ways": ways, "weights": weights, "bound": bound}
    number = tokens + (len(case.sync.compared) if case.sync is not None else 0)
    return {
        "observations": number,
        "rollout": {name: figure for name, figure in rollout.items() if figure is not None},
    }


def _way_figures(case: ScoredCase, way: str) -> dict[str, Any]:
    pairs = case.pairs(way)
    outputs = case.candidate.scores[way].outputs, case.theirs.outputs
    modules = module_differences(*outputs)
    return {
        "tokens": sum(len(ours) for ours, _ in pairs.values()),
        "statistics": statistics_of(pairs) if pairs else {},
        "modules": [[module.name, module.tokens, module.differing] for module in modules],
        "rerouted": {choice.name: choice.differing for choice in choice_differences(*outputs)},
    }
