"""Compute loss and lost weight updates of both runs per step, for plots and failure messages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from pytest_precision.parity.recorded_case import RecordedCase
from pytest_precision.parity.self_checks.vacuity import entries_of
from pytest_precision.parity.words import percent
from pytest_precision.probes.lost_updates.update_log import Counts, UpdateLog
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.recording import Recording


def shares_lost(case: RecordedCase) -> dict[str, Any]:
    """Return as a dict for each run how many of its updates rounding lost, see `summary`."""
    return {side.name: summary(side.log(UpdateLog)) for side in case.sides}


def summary(log: UpdateLog) -> dict[str, Any]:
    """Return as a dict the share of updates lost to rounding: in all tensors, and in the worst one.

    If no update was measured, only the reasons are returned.

    Returns:
        `share` of the updates that left the effective weight as it was; `share_by_size`, where an
        update counts as much as it would have moved its weight; `absorbed`, the share of the
        updates' norm that the weights lack; the same of the `worst` tensor with its `name`; and
        `unmeasured`, tensor to reason.
    """
    totals = log.totals()
    if not totals:
        return {"unmeasured": dict(log.unmeasured)}
    name, counts = worst(totals)
    return {
        **_figures(sum(totals.values(), Counts())),
        "worst": {"name": name, **_figures(counts)},
        "unmeasured": dict(log.unmeasured),
    }


def curves_of_runs(case: RecordedCase) -> dict[str, Any]:
    """Return the curves of each run to plot: loss, gradient norm, updates lost to rounding.

    A step's loss is the sum of its microbatches' observed losses.
    """
    losses = {side.name: _losses(side.trace) for side in case.sides}
    norms = {side.name: _norms(side.trace) for side in case.sides}
    steps = sorted({step for curve in losses.values() for step in curve})
    sums = {
        side.name: {
            step: sum(counts.values(), Counts())
            for step, counts in side.log(UpdateLog).steps.items()
        }
        for side in case.sides
    }

    def column(figure: Callable[[Counts], float]) -> dict[str, list[float | None]]:
        return {
            side: [figure(step_counts[step]) if step in step_counts else None for step in steps]
            for side, step_counts in sums.items()
        }

    return {
        "step": steps,
        "loss": {side: [curve.get(step) for step in steps] for side, curve in losses.items()},
        "grad_norm": {side: [curve.get(step) for step in steps] for side, curve in norms.items()},
        "lost_updates": column(lambda counts: counts.share),
        "absorbed": column(lambda counts: counts.absorbed),
    }


def lost_lines(candidate: Recording, reference: Recording) -> list[str]:
    """Return one line if rounding loses more weight updates in the candidate than in the reference.

    The tensor decides that loses most beside its like, and shares are compared in whole percent.
    """
    ours, theirs = (side.log(UpdateLog).totals() for side in (candidate, reference))

    def beside(name: str) -> int:
        other = theirs.get(name)
        return round(100 * ours[name].share) - (0 if other is None else round(100 * other.share))

    name = max(ours, key=lambda tensor: (beside(tensor), ours[tensor].share), default=None)
    if name is None or beside(name) <= 0:
        return []
    other = theirs.get(name)
    words = "not measured" if other is None else _share(other)
    return [f"{_share(ours[name])} of updates lost in {name} (reference: {words})"]


def losses_explained(case: RecordedCase, diagnosis: object) -> list[str]:
    """Return `lost_lines` of a difference."""
    return lost_lines(*case.whole.sides)


def beyond(side: Recording, limit: float) -> str | None:
    """Return words on how far a tensor's updates lost to rounding exceed `limit`; None if none do.

    The figure is `Counts.lost_by_size` of a tensor over the whole run. The share of a single step,
    or by number, does not tell runs apart: where a schedule ends, fp32 loses 80 % of its updates.
    """
    log = side.log(UpdateLog)
    totals = log.totals()
    name = max(totals, key=lambda tensor: totals[tensor].lost_by_size)
    counts = totals[name]
    if counts.lost_by_size <= limit:
        return None
    step = max(
        (step for step, tensors in log.steps.items() if name in tensors),
        key=lambda step: log.steps[step][name].lost_size,
    )
    return (
        f"{100 * counts.lost_by_size:.3g} % of the updates of {name} lost by size, over "
        f"max_lost_updates={limit!r}; the most at step {step}, "
        f"{100 * log.steps[step][name].lost_by_size:.3g} %"
    )


def unmeasured(side: Recording) -> str | None:
    """Return why it is not known how many updates a run lost to rounding; None if it is."""
    log = side.log(UpdateLog)
    for name, reason in log.unmeasured.items():
        return f"the updates of {name} cannot be measured: {reason}"
    if not any(counts.updates for counts in log.totals().values()):
        return "no update was measured"
    return None


def worst(totals: Mapping[str, Counts]) -> tuple[str, Counts]:
    """Return name and counts of the tensor that loses the largest share of updates to rounding."""
    return max(totals.items(), key=lambda item: item[1].share)


def _figures(counts: Counts) -> dict[str, float]:
    return {
        "share": counts.share,
        "share_by_size": counts.lost_by_size,
        "absorbed": counts.absorbed,
    }


def _share(counts: Counts) -> str:
    return percent(counts.lost, counts.updates) if counts.updates else "0 %"


def _losses(trace: Trace) -> dict[int, float]:
    """Return each train step's loss over all microbatches; a loss that ranks share counts once."""
    step_losses: dict[int, dict[object, float]] = defaultdict(dict)
    for moment, entry in entries_of(trace, "loss"):
        if moment.operation == "train" and moment.phase == "forward_backward":
            loss = entry.name, entry.place, entry.rank if entry.local else None
            step_losses[moment.step][loss] = float(trace.tensor(entry).double().sum())
    return {step: sum(losses.values()) for step, losses in step_losses.items()}


def _norms(trace: Trace) -> dict[int, float]:
    """Return the gradient norm of each train step: the first one that was computed in it."""
    norms: dict[int, float] = {}
    for moment, entry in entries_of(trace, "grad_norm"):
        if moment.operation == "train" and moment.step not in norms:
            norms[moment.step] = float(trace.tensor(entry).double().max())
    return norms
