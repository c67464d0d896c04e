"""Say which token's log-probability is the first to differ, and in which module that begins."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from pytest_precision.matrix.contract import dtype_name
from pytest_precision.parity.verdict import Divergence
from pytest_precision.rollout.module_differences import (
    ModuleDifference,
    choice_differences,
    module_differences,
    value_words,
)
from pytest_precision.rollout.sampled_distribution import distribution_words
from pytest_precision.rollout.scored_case import LOGPROB, BeyondBound, ScoredCase
from pytest_precision.rollout.token_statistics import figure_lines, statistics_of

ROUTERS_SHOWN = 4
"""Routers that are named where many chose otherwise."""


def token_headline(case: ScoredCase, way: str, beyond: BeyondBound) -> str:
    """Return the first line: the token with both values, the module, and whether weights agree."""
    token = f"logprob of token {beyond.position} of sequence {beyond.sequence}"
    problem = beyond.difference.reason
    if problem == "dtype":
        ours, theirs = (dtype_name(side.dtype) for side in (beyond.ours, beyond.theirs))
        return f"{token} is {ours}, not {theirs}"
    ours, theirs = distinct_numbers(beyond.ours, beyond.theirs)
    return "; ".join(
        filter(
            None,
            (f"{token} is {ours}, not {theirs}", place_words(case, way, beyond), held_to(case)),
        )
    )


def distinct_numbers(ours: Tensor, theirs: Tensor) -> tuple[str, str]:
    """Return two numbers with as many digits as tell them apart, five at least."""
    for digits in range(5, 18):
        words = f"{float(ours):.{digits}g}", f"{float(theirs):.{digits}g}"
        if words[0] != words[1]:
            break
    return words


def place_words(case: ScoredCase, way: str, beyond: BeyondBound) -> str:
    """Return in words the first module whose output differs, in the sequence of a token."""
    compared = module_differences(
        case.candidate.scores[way].outputs, case.theirs.outputs, beyond.sequence
    )
    first = next((module for module in compared if module.differing), None)
    if first is not None:
        assert first.first is not None
        return f"first at {first.name}, token {first.first[1]}"
    return "all modules agree, so that it arises after the model" if compared else ""


def held_to(case: ScoredCase) -> str:
    """Return in words whether weights agree."""
    if case.sync is None or not case.sync.compared:
        return "weights are not compared"
    return "weights agree"


def score_lines(case: ScoredCase, way: str, beyond: BeyondBound | None = None) -> Iterator[str]:
    """Yield what else is known of the scores: choices, modules, values, the bound, the figures."""
    scores = case.candidate.scores[way]
    yield from (parted.words for parted in case.parted)
    yield from choice_lines(case, way)
    sequence = None if beyond is None else beyond.sequence
    compared = module_differences(scores.outputs, case.theirs.outputs, sequence)
    first = next((module for module in compared if module.differing), None)
    if first is not None:
        yield module_words(first)
        yield from _values(case, way, first)
    if beyond is not None and case.noise is not None:
        yield f"bound: {case.noise.words}"
    pairs = case.pairs(way)
    if beyond is not None:
        reference = None if case.live is None else case.live[1]
        words = distribution_words(reference, case.sequences, pairs)
        yield from [words] if words else []
    yield from figure_lines(statistics_of(pairs))


def module_words(module: ModuleDifference) -> str:
    """Return in words how the output of a module differs."""
    if module.dtypes is not None:
        ours, theirs = module.dtypes
        return f"{module.name} computes in {ours}, not in {theirs}"
    assert module.first is not None
    sequence, position = module.first
    return (
        f"{module.name} is the first module whose output differs: {module.differing} of "
        f"{module.tokens} tokens, from token {position} of sequence {sequence} on"
    )


def _values(case: ScoredCase, way: str, module: ModuleDifference) -> Iterator[str]:
    """Yield how the first differing output differs, for which both sides score once more."""
    if case.live is None or module.first is None or module.dtypes is not None:
        return
    candidate, reference = case.live
    again = candidate.by(way) if candidate.score is None else candidate
    outputs = [
        side.scores(case.sequences, values_of=module.name).outputs for side in (again, reference)
    ]
    words = value_words(outputs[0], outputs[1], module.name, module.first)
    yield from [words] if words else []


def choice_lines(case: ScoredCase, way: str) -> Iterator[str]:
    """Yield the first token that took another expert, and how many did so in which layer."""
    flips = choice_differences(case.candidate.scores[way].outputs, case.theirs.outputs)
    if not flips:
        return
    first = flips[0]
    ours, theirs = (", ".join(map(str, row)) for row in (first.ours, first.theirs))
    yield (
        f"decision: token {first.first[1]} of sequence {first.first[0]} goes to experts {ours} in "
        f"{first.name}, not to {theirs}; margin {first.margin:.3g}"
    )
    layers = ", ".join(f"{flip.name} {flip.differing}" for flip in flips[:ROUTERS_SHOWN])
    more = f" and {len(flips) - ROUTERS_SHOWN} routers more" if len(flips) > ROUTERS_SHOWN else ""
    yield f"tokens that took another expert, of {first.tokens}: {layers}{more}"


def divergence(case: ScoredCase, beyond: BeyondBound) -> Divergence:
    """Return a token as the first divergence of a report."""
    statistics = beyond.difference.statistics
    return Divergence(
        op=-1,
        step=0,
        phase="init",
        kind=LOGPROB,
        name=f"sequence {beyond.sequence}",
        rank=None,
        index=(beyond.position,),
        candidate=float(beyond.ours),
        reference=float(beyond.theirs),
        ulp=None if statistics is None else statistics.max_ulp,
        rel_l2=None if statistics is None else statistics.rel_l2,
        mismatched=None if statistics is None else statistics.mismatched / statistics.numel,
        signature="",
        error="",
        evidence={"looked_at": len(case.sequences), "likewise": []},
    )
