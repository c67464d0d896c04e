"""What may refuse a comparison of scores, in the order of causes; if nothing does, it passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from pytest_precision.parity.compare.tensors import compare
from pytest_precision.parity.verdict import Ruling
from pytest_precision.parity.words import listed
from pytest_precision.rollout.first_token import (
    choice_lines,
    divergence,
    held_to,
    module_words,
    score_lines,
    token_headline,
)
from pytest_precision.rollout.module_differences import module_differences
from pytest_precision.rollout.scored_case import LOGPROB, ScoredCase
from pytest_precision.rollout.scorer import Scorer, Scores
from pytest_precision.rollout.token_statistics import common_tokens, figure_lines, statistics_of
from pytest_precision.rollout.weight_sync import WEIGHT_KIND

NAMED_WEIGHTS = 5
"""Weights that are named where many differ."""

RULE = (
    "What the candidate holds is to blame: honest rounding begins in a module whose weights are "
    "the same bits."
)
"""What tells a defect of the weight sync from rounding."""

OUTPUT = "output"

Step = Callable[[ScoredCase], "Ruling | None"]


def tokens_in_common(case: ScoredCase) -> Ruling | None:
    """Refuse sides that score no token in common."""
    for way in () if case.unscored else case.candidate.scores:
        if not case.pairs(way):
            words = "the two sides score no token in common, so that nothing is compared"
            return Ruling(
                outcome="vacuous", reason=in_way(case, way, words), gate=tokens_in_common.__name__
            )
    return None


def same_tokens(case: ScoredCase) -> Ruling | None:
    """Refuse sides that score other ids than they were given, such as a text encoded anew."""
    sides = [("reference", "", case.theirs)]
    sides += [("candidate", way, scores) for way, scores in case.candidate.scores.items()]
    for name, way, scores in sides:
        words = other_ids(name, scores, case.sequences)
        if words:
            reason = in_way(case, way, words) if way else words
            advice = "Give the ids of the rollout to both sides; do not encode its text anew."
            return Ruling(
                outcome="vacuous", reason=reason, gate=same_tokens.__name__, details=(advice,)
            )
    return None


def other_ids(name: str, scores: Scores, sequences: list[Tensor]) -> str:
    """Return in words where a side scores other ids than those of the sequences; else empty."""
    for number, ids in enumerate(scores.ids or ()):
        expected = sequences[number].tolist() if number < len(sequences) else []
        if ids != expected:
            pairs = zip(ids, expected, strict=False)
            places = (at for at, (ours, theirs) in enumerate(pairs) if ours != theirs)
            at = next(places, min(len(ids), len(expected)))
            ours, theirs = (row[at] if at < len(row) else "none" for row in (ids, expected))
            return (
                f"the {name} scores other tokens: id {ours}, not {theirs}, at token {at} of "
                f"sequence {number}"
            )
    strange, unused = scores.rows.strange, scores.rows.unused
    if strange is not None and unused:
        number, at, ours = strange
        row = sequences[number].tolist()
        theirs = row[at] if at < len(row) else "none"
        return (
            f"the {name} scores other tokens: id {ours}, not {theirs}, at token {at} of "
            f"sequence {number}"
        )
    return ""


def weights_agree(case: ScoredCase) -> Ruling | None:
    """Fail sides whose weights are not the same bits after the declared cast."""
    if case.sync is None or not case.sync.findings:
        return None
    findings = case.sync.findings
    order = sorted(findings, key=lambda finding: not finding.explained)
    first = order[0]
    alike = [finding for finding in findings if finding.cause == first.cause]
    reason = first.words
    if len(alike) > 1 and first.explained:
        more = "does one other" if len(alike) == 2 else f"do {len(alike) - 1} others"
        reason = f"{first.words}, and so {more}"
    elif not first.explained:
        reason = f"weight {first.words}"
    details = [finding.words for finding in order[1:] if finding not in alike][:NAMED_WEIGHTS]
    names = [finding.name for finding in alike]
    if len(names) > 1:
        details.insert(0, f"these weights: {listed(names, NAMED_WEIGHTS)}")
    for way in case.candidate.scores:
        details += [in_way(case, way, line) for line in score_lines(case, way)]
    details.append(RULE)
    return Ruling(
        outcome="fail",
        reason=reason,
        gate=weights_agree.__name__,
        details=tuple(filter(None, details)),
    )


def scores_agree(case: ScoredCase) -> Ruling | None:
    """Fail sides whose log-probabilities differ by more than the criterion allows."""
    for way in () if case.unscored else case.candidate.scores:
        found_token = case.beyond(case.pairs(way))
        if found_token is not None:
            return Ruling(
                outcome="fail",
                reason=in_way(case, way, token_headline(case, way, found_token)),
                gate=scores_agree.__name__,
                details=tuple(score_lines(case, way, found_token)),
                divergence=divergence(case, found_token),
            )
    return None


def outputs_agree(case: ScoredCase) -> Ruling | None:
    """Fail sides that do not score, and whose modules give back other bytes."""
    if not case.unscored or case.criteria.unchecked(OUTPUT):
        return None
    compared = module_differences(
        next(iter(case.candidate.scores.values())).outputs, case.theirs.outputs
    )
    first = next((module for module in compared if module.differing), None)
    if first is None:
        return None
    assert first.first is not None
    sequence, position = first.first
    reason = f"output of {first.name} differs at token {position} of sequence {sequence}"
    return Ruling(
        outcome="fail",
        reason=f"{reason}; {held_to(case)}",
        gate=outputs_agree.__name__,
        details=(module_words(first),),
    )


def tokens_agree(case: ScoredCase) -> Ruling | None:
    """Fail recorded sides that agree until one goes on with another token than the other."""
    if not case.parted:
        return None
    first, *others = (parted.words for parted in case.parted)
    advice = "Record one side with the tokens of the other as its input, and compare all of them."
    return Ruling(
        outcome="fail",
        reason=f"{first}; all before agrees",
        gate=tokens_agree.__name__,
        details=(*others, advice),
    )


def weights_shown(case: ScoredCase) -> Ruling | None:
    """Refuse a pass of sides of which one shows no weights, unless the test leaves them out."""
    if case.criteria.unchecked(WEIGHT_KIND) or (case.sync is not None and case.sync.compared):
        return None
    lacking = [
        name
        for name, side in (("candidate", case.candidate), ("reference", case.reference))
        if side.table is None
    ]
    words = (
        f"the {' and the '.join(lacking)} shows no weights" if lacking else "no weight is in both"
    )
    reason = (
        f"{words}, so that a stale one may hide in the bound; give weights= or model= of a Scorer, "
        f'or accept it with criterion={{"weight": unchecked(reason="...")}}'
    )
    return Ruling(outcome="vacuous", reason=reason, gate=weights_shown.__name__)


def scored_kinds(case: ScoredCase) -> Ruling | None:
    """Refuse a criterion that names nothing that was compared."""
    names = {LOGPROB: [f"sequence {number}" for number in range(len(case.sequences))]}
    if case.sync is not None:
        names[WEIGHT_KIND] = [*case.sync.compared]
    words = case.criteria.unknown(names)
    return Ruling(outcome="vacuous", reason=words, gate=scored_kinds.__name__) if words else None


def score_bounds(case: ScoredCase) -> Ruling | None:
    """Refuse a bound of log-probabilities that a wrong weight, or another token, would satisfy."""
    criterion = case.criterion(0)
    if not criterion.tolerates:
        return None
    if case.unscored:
        return None
    planted = _planted(case)
    if planted is not None:
        name, logprobs = planted
        if case.beyond(common_tokens(logprobs, case.theirs.logprobs)) is not None:
            return None
        words = f"with the rows of {name} in another order no log-probability leaves it"
    else:
        rows = case.theirs.logprobs
        if any(compare(row.roll(1), row, case.criterion(number)) for number, row in rows.items()):
            return None
        words = "each log-probability could be that of the token before it"
    reason = f"the bound of logprob ({criterion}) is so loose that it proves nothing: {words}"
    return Ruling(outcome="vacuous", reason=reason, gate=score_bounds.__name__)


def _planted(case: ScoredCase) -> tuple[str, Mapping[int, Tensor]] | None:
    """Return the name of a weight and the scores with it planted; None where nobody can plant."""
    if case.live is None or case.live[1].model is None:
        return case.planted
    name, scores = with_planted(case.live[1], case.live[1].model, case.sequences)
    return name, scores.logprobs


def with_planted(side: Scorer, model: nn.Module, sequences: list[Tensor]) -> tuple[str, Scores]:
    """Score with the rows of one weight in another order, and put them back.

    The weight is that in the middle of the model: the first and the last ones have the strongest
    effect, which any bound would notice.
    """
    matrices = [(name, tensor) for name, tensor in model.named_parameters() if tensor.ndim >= 2]
    name, parameter = matrices[len(matrices) // 2]
    before = parameter.data
    try:
        parameter.data = before.roll(1, 0)
        return name, side.scores(sequences)
    finally:
        parameter.data = before


def in_way(case: ScoredCase, way: str, words: str) -> str:
    """Return words about a way of scoring, with its name where there are several."""
    return words if len(case.candidate.scores) == 1 else f"{way}: {words}"


STEPS: tuple[Step, ...] = (
    weights_agree,
    tokens_in_common,
    same_tokens,
    scores_agree,
    outputs_agree,
    tokens_agree,
    weights_shown,
    scored_kinds,
    score_bounds,
)


def ruled_scores(case: ScoredCase) -> Ruling:
    """Return what the first step that refuses a case rules; else a pass."""
    refused = next(filter(None, (step(case) for step in STEPS)), None)
    if refused is not None:
        return refused
    if case.unscored:
        figures = [f"log-probabilities are not compared: {case.unscored}"]
    else:
        figures = [
            in_way(case, way, line)
            for way in case.candidate.scores
            for line in (*choice_lines(case, way), *figure_lines(statistics_of(case.pairs(way))))
        ]
    in_part = not case.criteria.exact or bool(case.unscored)
    return Ruling(in_part=in_part, details=tuple(figures))
