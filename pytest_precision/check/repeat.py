"""Check that a layout computes the same bits each time, by running it several times.

Further runs are on the ranks of the first, and on new ones with another seed of Python's hashes, by
which sets and dictionaries of objects are ordered; where asked, with another number of threads; and
where ranks have a GPU each, with their devices the other way round.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any, NamedTuple

from pytest_precision.check.case import Case
from pytest_precision.check.gate import gate
from pytest_precision.check.gate_order import gates_of
from pytest_precision.check.gates import ruled, same_data
from pytest_precision.check.recordings import MakeRecordings, Recordings
from pytest_precision.check.side import Side
from pytest_precision.check.terms import Terms
from pytest_precision.parity.compare.differing import Finding
from pytest_precision.parity.compare.divergences import differs
from pytest_precision.parity.explain import wording
from pytest_precision.parity.explain.locate import failed_at, what_differs
from pytest_precision.parity.verdict import Ruling
from pytest_precision.ranks.gpus.devices import (
    VISIBLE_DEVICES,
    listed_devices,
    visible_names,
)

HASH_SEED = "PYTHONHASHSEED"


class FurtherRun(NamedTuple):
    """A repeated run of a layout, and how it differs from the first, as by the hash seed.

    Attributes:
        words: what is different in it, for messages.
        side: what is recorded.
    """

    words: str
    side: Side


def further_runs(
    side: Side, runs: int, threads: int | None, mode: str, devices: Sequence[str] = ()
) -> Iterator[FurtherRun]:
    """Yield reruns that must give the first run's bits, such as on new ranks or other devices.

    Args:
        side: what is recorded first.
        runs: how many there are, with the first one, and without those for threads and devices.
        threads: number of threads of one more run; None for none.
        mode: how ranks run; `inline` has no new ones.
        devices: names of the GPUs that ranks have one of each.
    """
    same_ranks = mode == "reuse" and not side.needs.fresh
    for number in range(2, runs + 1):
        if mode == "inline":
            yield FurtherRun("in the same process", side)
        elif number % 2 == 0:
            yield FurtherRun("on the same ranks" if same_ranks else "on new ranks", side)
        elif HASH_SEED in dict(side.needs.environment.declared):  # the test wants this one
            yield FurtherRun("on new ranks", _with(side))
        else:
            words = "on new ranks with another hash seed"
            yield FurtherRun(words, _with(side, **{HASH_SEED: str(number)}))
    if threads is not None:
        count = f"{threads} thread{'s' * (threads > 1)}"
        yield FurtherRun(f"on new ranks with {count}", _with(side, OMP_NUM_THREADS=str(threads)))
    if len(devices) > 1:
        turned = {VISIBLE_DEVICES: ",".join(reversed(devices))}
        yield FurtherRun("on new ranks with the devices in reverse order", _with(side, **turned))


def devices_of(side: Side, sharing: int) -> tuple[str, ...]:
    """Return the names of the GPUs of a run's ranks; () unless each rank has a GPU to itself.

    Args:
        side: what is recorded.
        sharing: how many ranks may share a GPU.
    """
    if side.cell.device != "cuda" or side.cell.world_size == 1 or sharing > 1:
        return ()
    return visible_names(os.environ.get(VISIBLE_DEVICES), listed_devices() or ())


def repeated(
    runs: Sequence[FurtherRun], first: Side, terms: Terms, record: MakeRecordings
) -> tuple[Ruling, dict[str, Any]]:
    """Run a layout repeatedly; return the outcome of comparing the runs, and data for report.json.

    Args:
        runs: further runs, at least one.
        first: what is recorded first.
        terms: of the test.
        record: makes the recordings of a further run and of the first.

    Raises:
        SideFailed, RanksSkipped, WorldSizeError: see `Recordings.both`.
    """
    with ExitStack() as stack:
        recordings: list[Recordings] = []
        for number, run in enumerate(runs, 2):
            names = f"layout in run {number}, {run.words}", "layout"
            recordings.append(stack.enter_context(closing(record(run.side, first, names=names))))
            case = Case.opened(recordings[-1], terms)
            where = f"in run {number} of {len(runs) + 1}, {run.words}"
            ruling = same_data(case) or repeats(case, where)
            if ruling is not None:
                break
        else:
            ruling = ruled(
                case.of_candidate_alone("layout"),
                gates_of(terms.registered, bare=terms.bare, alone=True),
            )
        spent = {
            name: sum(pair.timing[name] for pair in recordings) for name in recordings[0].timing
        }
        return ruling, case.figures() | {"timing": spent} | dict(ruling.figures)


@gate
def repeats(case: Case, where: str) -> Ruling | None:
    """Fail the check if a tensor of a repeated run differs in any bit from the first run's.

    Args:
        case: a further run, as the candidate, and the first.
        where: the further run, in words.
    """
    finding = _first_finding(case)
    if finding is None:
        return None
    closer = case.around(finding.pair.moment.step)
    repeated_finding = _first_finding(closer)
    shown_finding = (
        repeated_finding
        if repeated_finding is not None and repeated_finding.pair.moment == finding.pair.moment
        else finding
    )
    named = case.culprit(shown_finding)
    notes = filter(None, ("Here, `the reference` is the first run.", named.note))
    details = [*notes, *wording.statistics_lines(shown_finding, "in the first run")]
    if repeated_finding is None:
        details.append("Both runs were made once more, and had the same bits then.")
    reason = f"does not repeat: {what_differs(shown_finding)} {where}"
    return failed_at(shown_finding, reason, details, named.culprit)


def _first_finding(case: Case) -> Finding | None:
    """Return the first tensor that differs from the first run, on any rank; None if none does."""
    return differs(case.candidate, case.reference) or case.judgement.first


def _with(side: Side, **variables: str) -> Side:
    """Return the same layout, to be run on new ranks with additional environment variables."""
    environment = side.needs.environment
    declared = tuple(sorted({**dict(environment.declared), **variables}.items()))
    needs = replace(side.needs, environment=environment.declaring(declared), fresh=True)
    return replace(side, needs=needs)
