"""Unlike: two sides that do not make the same step, so that no number of it can agree."""

from __future__ import annotations

from pytest_precision.parity.compare.divergences import ONE_SIDED, Finding, Judgement


def other_weights(finding: Finding, judgement: Judgement) -> str:
    """Say which weights either side updates, where these are not the same; else nothing.

    An optimizer shows the rates of what it updates. The models have weights of the same names, or
    it is these that differ.
    """
    moment, kind = finding.pair.moment, finding.pair.kind
    weights = judgement.spread.get(("param", moment.op))
    if kind != "lr" or finding.problem not in ONE_SIDED or weights is None:
        return ""
    if any(one.problem in ONE_SIDED for one in weights.findings):
        return ""
    rates = [f for f in judgement.spread[kind, moment.op].findings if f.pair.moment == moment]
    ours, theirs = ([f for f in rates if f.problem == side] for side in ("extra", "missing"))
    if not ours or not theirs:
        return ""
    return f"{_counted(ours)} here, {_counted(theirs)} in the reference"


def _counted(findings: list[Finding]) -> str:
    names = list(dict.fromkeys(finding.pair.name for finding in findings))
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def other_number(finding: Finding, judgement: Judgement) -> str:
    """Say how many losses either side has in a step, where these are not as many; else nothing."""
    kind, moment = finding.pair.kind, finding.pair.moment
    if kind != "loss":
        return ""
    tally = judgement.spread[kind, moment.op]
    problems = [one.problem for one in tally.findings]
    lacks, exceeds = problems.count("missing"), problems.count("extra")
    if lacks == exceeds:
        return ""
    ours, theirs = tally.pairs - lacks, tally.pairs - exceeds
    return f"{ours} microbatches here, {theirs} in the reference"
