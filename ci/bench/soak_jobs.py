"""The jobs of the soak, each a check that must end in a known way, and the session that runs them.

After each job a candidate that is known to be wrong must fail, and one that is known to be right
must pass, on as many ranks. The wrong one has the defect that the job may have patched into its
process, and its reference is recorded after the job; the reference of the right one is as old as
the session. So it shows whatever a job does to ranks that it must not reach.
"""

from __future__ import annotations

import random
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import odd_sides
import pytest
from faulty import FAULTS
from odd_layouts import LEAKS, PATCHES, failing, in_groups, leaking, on_framework, patching, wrong

from pytest_precision import ParityError, layouts, workloads
from pytest_precision.check.parity import Parity
from pytest_precision.errors import PrecisionLeakWarning
from pytest_precision.matrix.cell import Cell
from pytest_precision.ranks.state.definitions import Definitions
from pytest_precision.trace.cache import TraceCache

TINY = partial(workloads.mlp, width=5, depth=1)

DEADLINE = 120.0
"""Seconds of a check: far more than it takes, also on a busy machine."""
HANG_SECONDS = 5.0
"""Of a job that is to hang, which costs as much."""

FAILED = re.compile(r"rank (\d+) of \d+ in \S+ (raised|exited|died|hung|skipped)")


class Kind(NamedTuple):
    """Jobs of one kind.

    Attributes:
        layout: the candidate; None for one of the package's own, named by its way.
        ways: that a job may take, each with its weight.
        weight: how often it is drawn.
    """

    layout: Callable[..., Any] | None
    ways: Mapping[str, int]
    weight: int = 15


REPLACED = ("torch.nn.functional.gelu", "torch.nn.Linear.forward", "odd_layouts.made")
"""What a test replaces in its own process: a function and a method of torch, one of the user's."""


def judged(*ways: str) -> dict[str, int]:
    """Return ways, each of which is also taken wrongly."""
    return dict.fromkeys([*ways, *(way + odd_sides.WRONG for way in ways)], 1)


KINDS = {
    "built-in": Kind(None, {"ddp": 1, "fsdp2": 1}),
    "patching": Kind(patching, dict.fromkeys(PATCHES, 1)),
    "sub-groups": Kind(in_groups, {"new groups": 1, "mesh": 1, "sharded mesh": 1}),
    "globals": Kind(on_framework, {"counts": 1, "starts wrong": 1, "keeps its group": 1}),
    "leaking": Kind(leaking, dict.fromkeys(LEAKS, 1)),
    "closures": Kind(odd_sides.odd, judged("closure of")),
    "averages": Kind(odd_sides.odd, judged("average of")),
    "optimizers": Kind(odd_sides.odd, judged(*(f"optimizer {c}" for c in odd_sides.CLASSES))),
    "wrappers": Kind(odd_sides.odd, judged("wrapper of")),
    "rewritten": Kind(odd_sides.scaled, judged("from_config", "from_helper")),
    "monkeypatched": Kind(layouts.ddp, dict.fromkeys(REPLACED, 1)),
    "failing": Kind(failing, {name: fault.weight for name, fault in FAULTS.items()}, weight=55),
}
"""A quarter of the jobs fails."""

WORLD_SIZES = {"mesh": (2, 4), "sharded mesh": (2, 4), "skip": (2, 3)}
"""Of ways that need others: meshes of two axes, and a rank that skips alone."""

LEFT_BY_FRAMEWORK = {"counts": "ENGINES", "starts wrong": "_ARGUMENTS", "keeps its group": "_GROUP"}


class Ending(NamedTuple):
    """How a check ends.

    Attributes:
        outcome: of the verdict, or which rank failed and how.
        leak: what was said of state left behind; of an expected ending, a word of it.
        words: all that was said of a check that did not pass.
    """

    outcome: str
    leak: str = ""
    words: str = ""


class Task(NamedTuple):
    """One job.

    Attributes:
        number: from 0.
        kind: one of `KINDS`.
        way: one of the ways of the kind.
        world_size: number of ranks.
        culprit: the rank that fails, if one does.
        defect: name of the patch that is made, or that the wrong candidate has by itself.
    """

    number: int
    kind: str
    way: str
    world_size: int
    culprit: int
    defect: str

    @property
    def candidate(self) -> Callable[..., Any]:
        """The layout that the job checks."""
        layout: Callable[..., Any] = KINDS[self.kind].layout or getattr(layouts, self.way)
        return layout

    @property
    def expected(self) -> Ending:
        """How the job has to end, whatever ran before it."""
        if self.way.endswith(odd_sides.WRONG):
            return Ending("fail")
        match self.kind:
            case "patching":
                return Ending("fail", self.defect)
            case "globals":
                outcome = "fail" if self.way == "starts wrong" else "pass"
                return Ending(outcome, LEFT_BY_FRAMEWORK[self.way])
            case "monkeypatched":
                return Ending("error")
            case "leaking":
                return Ending("pass", LEAKS[self.way].word)
            case "failing":
                return Ending(f"rank {self.culprit} {FAULTS[self.way].cause}")
        return Ending("pass")

    @property
    def endings(self) -> dict[str, Ending]:
        """Those of all checks of this task."""
        return {"job": self.expected, "known bad": Ending("fail"), "known good": Ending("pass")}

    @property
    def timeout(self) -> float:
        """Deadline of the job in seconds."""
        return HANG_SECONDS if self.expected.outcome.endswith("hung") else DEADLINE

    @property
    def cell(self) -> Cell:
        """Of the job and of the wrong candidate: a layout reads there what it has to do."""
        axes = ("way", self.way), ("culprit", self.culprit), ("defect", self.defect)
        return replace(cell_on(self.world_size), extra=axes)


def cell_on(world_size: int) -> Cell:
    """Return the cell of all checks; in bf16 three ranks agree bit for bit too."""
    return Cell("bf16", "fp32", sequence="train1", world_size=world_size)


def plan(jobs: int, seed: int) -> list[Task]:
    """Return so many jobs, the same for the same seed."""
    rng = random.Random(seed)
    names = rng.choices([*KINDS], [kind.weight for kind in KINDS.values()], k=jobs)
    ways = [rng.choices([*KINDS[name].ways], [*KINDS[name].ways.values()])[0] for name in names]
    return [_drawn(*chosen, rng) for chosen in zip(range(jobs), names, ways, strict=True)]


def _drawn(number: int, kind: str, way: str, rng: random.Random) -> Task:
    world_size = rng.choice(WORLD_SIZES.get(way, (1, 2, 2, 3)))
    defect = way if kind == "patching" else rng.choice([*PATCHES])
    return Task(number, kind, way, world_size, rng.randrange(world_size), defect)


def ending(
    parity: Parity, candidate: Callable[..., Any], reference: Callable[..., Any] = layouts.adamw
) -> Ending:
    """Check a candidate, against AdamW unless told otherwise, and return how that ended."""
    words = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            verdict = parity.check(candidate, reference, workload=TINY)
        except ParityError as error:
            verdict = error.verdict
            words = str(error)
    leaks = [str(w.message) for w in caught if issubclass(w.category, PrecisionLeakWarning)]
    failed = FAILED.search(verdict.reason)
    outcome = failed.expand(r"rank \1 \2") if failed else verdict.outcome
    return Ending(outcome, "\n".join(leaks), words)


def ending_anew(
    parity: Parity, cell: Cell, candidate: Callable[..., Any], *reference: Callable[..., Any]
) -> Ending:
    """Do the same in another cell, with a reference that is recorded now."""
    with closing(TraceCache()) as traces:
        return ending(replace(parity, cell=cell, traces=traces), candidate, *reference)


def ending_of(task: Task, parity: Parity) -> Ending:
    """Run the check that is the job of a task."""
    match task.kind:
        case "closures" | "averages" | "optimizers" | "wrappers":
            cell = task.cell.replace(precision="fp32", sequence="train3")
            return ending_anew(parity, cell, task.candidate, odd_sides.plain)
        case "rewritten":
            return ending_after_rewriting(task, parity)
        case "monkeypatched":
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(task.way, print)
                return ending(parity, task.candidate)
    return ending_anew(parity, task.cell, task.candidate)


def ending_after_rewriting(task: Task, parity: Parity) -> Ending:
    """Check a reference that is as old as the session after a file that it reads has changed."""
    reader = getattr(odd_sides, task.way.removesuffix(odd_sides.WRONG))
    file = Path(tempfile.gettempdir()) / f"soak_{reader.__name__}.py"
    reference = partial(reader, file=str(file))
    parity = replace(parity, settings=replace(parity.settings, pure=False))
    factors = random.Random(task.number).sample(["0.5", "1.5", "2.0"], 2)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(file.parent)
        try:
            for factor in factors:
                file.write_text(f"FACTOR = {factor}")
                is_wrong = task.way.endswith(odd_sides.WRONG) and factor == factors[-1]
                candidate_factor = factors[0] if is_wrong else factor
                ended = ending(
                    parity, partial(task.candidate, factor=float(candidate_factor)), reference
                )
                if ended.outcome != "pass":
                    break
        finally:
            file.unlink()
            for compiled in file.parent.glob(f"__pycache__/{file.stem}.*"):
                compiled.unlink()
    return ended


DEFINED = Definitions()
"""What modules define before the first job; a job that replaces nothing must not be refused."""


def test_job(task: Task, parity: Parity, record_property: Callable[[str, object], None]) -> None:
    """Run one job and the two checks after it, and record how each has ended."""
    # Its own verdicts stay until the session ends.
    parity = replace(parity, verdicts=[], definitions=DEFINED)
    hasty = replace(parity, settings=replace(parity.settings, timeout=task.timeout))
    record_property("job", ending_of(task, hasty))
    record_property("known bad", ending_anew(parity, task.cell, wrong))
    record_property("known good", ending(parity, layouts.ddp))
