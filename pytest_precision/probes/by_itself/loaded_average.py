"""Tell loaded weights that are those of an average, which was swapped in while they were saved."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pytest_precision.matrix.sequence import LOADS
from pytest_precision.parity.recorded_case import RecordedCase
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Trace

WEIGHTS, AVERAGES = "param", "average"
"""The kinds that are held against each other."""


def loaded_average_lines(case: RecordedCase) -> Iterator[str]:
    """Yield a line for each side whose weights after a load are those of its average."""
    for side in case.whole.sides:
        for step in _steps_of_averages(side.trace):
            yield f"In the {side.name}, the loaded weights are the {AVERAGES} of step {step}"


def _steps_of_averages(trace: Trace) -> Iterator[int]:
    """Yield the step after which each load put averages in the place of weights."""
    after_steps: dict[int, Moment] = {}
    for moment in trace.moments:
        if moment.operation in LOADS and moment.step in after_steps:
            saved_moment = after_steps[moment.step]
            weights = _described(trace, saved_moment, WEIGHTS)
            loaded = _described(trace, moment, WEIGHTS).items()
            averages = {*_described(trace, saved_moment, AVERAGES).values()}
            other = [words for name, words in loaded if words != weights.get(name, words)]
            if other and averages.issuperset(other):
                yield moment.step
        elif moment.phase == "optimizer_step":
            after_steps[moment.step] = moment


def _described(trace: Trace, moment: Moment, kind: str) -> Mapping[str, str]:
    """Return the tensors of a kind at a moment, by name: dtype, shape and digest."""
    return {
        f"{entry.name} on rank {entry.rank}": trace.described(entry)
        for entry in trace.entries(moment, {kind})
    }
