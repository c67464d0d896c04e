"""Compare a check's results with a baseline: results that the repository keeps in a file.

A side is compared with what it computed then, so that one that moves alone is told from a move of
both, as with another commit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from pytest_precision.check.case import Case
from pytest_precision.check.gate import gate
from pytest_precision.check.terms import Terms
from pytest_precision.engine.kinds import causal_rank
from pytest_precision.errors import BaselineError, NoBaselineError, expected_but_got
from pytest_precision.options import Settings
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.divergences import TOLD, judge
from pytest_precision.parity.explain import spread, wording
from pytest_precision.parity.explain.diagnosis import diagnose
from pytest_precision.parity.explain.locate import divergence_of, histogram_of
from pytest_precision.parity.verdict import Ruling, again
from pytest_precision.probes.baselines.baseline_files import (
    FOLDER,
    BaselinePlace,
    claim,
    shown_from,
)
from pytest_precision.probes.baselines.baseline_text import CheckBaseline
from pytest_precision.probes.baselines.baseline_trace import kept_side, trace_of
from pytest_precision.probes.then.moved import TIME_GATES, Moves, since
from pytest_precision.trace.cache import TraceCache
from pytest_precision.trace.reader import Trace
from pytest_precision.trace.recording import Recording

NAME = "the baseline"

NOT_DECISIVE = ("gpus", "python")
"""What an environment says that decides about no bit."""


@dataclass(frozen=True)
class KeptCheck:
    """A check whose results are compared with a baseline, or written as one.

    Attributes:
        place: where its baselines lie.
        update: whether it makes them.
        terms: of the test.
        traces: gives folders.
        number: of the check in its test, from 1.
        claims: folder in which the session notes who writes which baseline; None if nobody does.
    """

    place: BaselinePlace
    update: bool
    terms: Terms
    traces: TraceCache
    number: int = 1
    claims: Path | None = None

    @classmethod
    def of_check(
        cls,
        settings: Settings,
        terms: Terms,
        traces: TraceCache,
        nodeid: str,
        number: int,
        golden: str,
        claims: Path | None = None,
    ) -> KeptCheck:
        """Return a check that knows where its baseline is stored and whether to overwrite it.

        Args:
            settings: of the test.
            terms: of the test.
            traces: gives folders.
            nodeid: pytest's id of the test.
            number: of the check in its test, from 1.
            golden: name of the baseline; empty for that of the test.
            claims: folder in which the session notes who writes which baseline.

        Raises:
            ValueError: see `BaselinePlace.of_name`.
        """
        folder = settings.baseline_dir or terms.root / FOLDER
        place = (
            BaselinePlace.of_name(folder, golden, nodeid)
            if golden
            else BaselinePlace.of_test(folder, nodeid, number)
        )
        return cls(place, settings.baseline == "update", terms, traces, number, claims)

    def ruled(self, current_ruling: Ruling, case: Case) -> tuple[Ruling, dict[str, Any]]:
        """Compare a check with its baseline, or update that; return the outcome and report data.

        Args:
            current_ruling: the ruling without it.
            case: both sides, or the candidate alone.

        Raises:
            NoBaselineError: there is none for this environment; only of a check that passes.
            BaselineError: the sides cannot be kept, or the baseline cannot be read.
        """
        if current_ruling.outcome not in ("pass", "fail") or (
            self.update and current_ruling.outcome == "fail"
        ):
            return current_ruling, {}
        key = _key(case.judged)
        baseline_report: dict[str, Any] = {
            "file": shown_from(self.terms.root, self.place.file(key))
        }
        current_baseline = CheckBaseline(
            self.place.test,
            key,
            {
                recording.name: kept_side(recording.trace, str(side.layout), self._criteria)
                for side, recording in case.with_whole_tensors().recorded()
            },
        )
        if self.update:
            if self.claims is not None:
                writer = f"check {self.number} of {self.place.test}"
                claim(self.claims, self.place.file(key), writer)
            written = self.place.write(current_baseline)
            return current_ruling, {
                "baseline": baseline_report | {"state": "written" if written else "unchanged"}
            }
        try:
            ruling, figures = self._compare(current_ruling, current_baseline, self.place.read(key))
        except NoBaselineError:
            if current_ruling.outcome == "pass":
                raise
            return current_ruling, {}
        state = "moved" if ruling.gate in MOVED_GATES else "as kept"
        return ruling, figures | {"baseline": baseline_report | {"state": state}}

    @property
    def _criteria(self) -> Criteria:
        criteria = self.terms.criteria
        if criteria.noise_runs:
            advice = "noise() trains the reference again: use norm(rel=) with a baseline"
            raise BaselineError(
                expected_but_got("a criterion that works with a baseline", criteria, advice)
            )
        return criteria

    def _compare(
        self, current_ruling: Ruling, mine: CheckBaseline, kept_baseline: CheckBaseline
    ) -> tuple[Ruling, dict[str, Any]]:
        if mine.sides.keys() != kept_baseline.sides.keys():
            ours, theirs = (" and ".join(baseline.sides) for baseline in (mine, kept_baseline))
            file = self.place.file(mine.key)
            expected, got = f"a baseline with results of {ours}", f"{file} with those of {theirs}"
            raise BaselineError(expected_but_got(expected, got, self._advice))
        with self._traces(mine) as new_traces, self._traces(kept_baseline) as old_traces:
            rulings = {
                name: ruling
                for name in mine.sides
                if (ruling := self._moved(new_traces[name], old_traces[name])) is not None
            }
            if len(mine.sides) == 1:
                return golden(current_ruling, rulings, self._advice) or current_ruling, {}
            both = partial(self._moved, *old_traces.values())
            return since(current_ruling, Moves(NAME, rulings, both, refresh=self._advice))

    @property
    def _advice(self) -> str:
        return f"If that is meant: {again(self.place.test, options='--precision-baseline=update')}"

    @contextmanager
    def _traces(self, baseline: CheckBaseline) -> Iterator[dict[str, Trace]]:
        """Yield the results in a baseline as recorded runs, whose files are removed afterwards."""
        traces: dict[str, Trace] = {}
        with ExitStack() as stack:
            for name, side in baseline.sides.items():
                with self.traces.new_folder() as folder:
                    stack.callback(self.traces.drop, folder)
                    traces[name] = trace_of(side, folder, dict(baseline.key))
            yield traces

    def _moved(self, ours: Trace, theirs: Trace) -> Ruling | None:
        """Return a failed outcome if the results differ from the baseline's; else None."""
        if ours.moments != theirs.moments:
            steps = [max(moment.step for moment in trace.moments) for trace in (ours, theirs)]
            reason = f"it has {len(ours.moments)} moments in {steps[0]} steps"
            baseline_moments = f"the baseline has {len(theirs.moments)} in {steps[1]}"
            return Ruling(outcome="fail", reason=f"{reason}, {baseline_moments}")
        judgement = judge(ours, theirs, self._criteria)
        if judgement.first is None:
            return _missing_kinds(ours, theirs)
        diagnosis = diagnose(judgement)
        return Ruling(
            outcome="fail",
            reason=wording.headline(diagnosis, judgement),
            details=(
                *wording.statistics_lines(diagnosis.finding, "in the baseline"),
                "",
                *spread.rows(judgement),
                "",
            ),
            divergence=divergence_of(diagnosis),
            figures={
                "spread": spread.spread_figures(judgement),
                "histogram": histogram_of(diagnosis.finding),
            },
        )


@gate
def golden(current_ruling: Ruling, moved: Mapping[str, Ruling], advice: str) -> Ruling | None:
    """Fail the check if the candidate's results differ from its baseline."""
    if current_ruling.outcome != "pass" or not moved:
        return None
    (ruling,) = moved.values()
    reason = f"the candidate moved since {NAME}: {ruling.reason}"
    return replace(ruling, reason=reason, details=(*ruling.details, advice))


def _missing_kinds(candidate_trace: Trace, reference_trace: Trace) -> Ruling | None:
    """Return a failed outcome if the baseline lacks a kind of tensor that the side shows.

    Of two sides, one may lack some kinds. Of one side, which showed them when it was kept, somebody
    has deleted the lines; or it shows more now.
    """
    for moment, then in zip(candidate_trace.moments, reference_trace.moments, strict=True):
        lacking = candidate_trace.kinds_at(moment) - TOLD - reference_trace.kinds_at(then)
        if lacking:
            names = ", ".join(sorted(lacking, key=causal_rank))
            reason = f"{names} is missing from the baseline {wording.when(moment)}"
            return Ruling(outcome="fail", reason=reason)
    return None


MOVED_GATES = tuple(gate_function.__name__ for gate_function in (*TIME_GATES, golden))
"""Gates that refuse a side for its baseline."""


def _key(recordings: Iterable[Recording]) -> dict[str, str]:
    """Return a baseline's key: the versions and settings that affect the bits of results."""
    key: dict[str, str] = {}
    for side in recordings:
        for name, value in side.trace.header.environment.items():
            if name not in NOT_DECISIVE and key.setdefault(name, value) != value:
                key[f"{side.name}.{name}"] = value
    return key
