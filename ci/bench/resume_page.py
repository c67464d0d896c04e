"""Write docs/evidence/optimizers.md: whether training goes on where it stopped, by optimizer.

    ci/optimizers

Each class is held to the same run without an interruption, once by the tool and once by the bits of
the last weights alone; then it trains in an `Engine`, where the oracle judges it. The exit status
is 1 where the tool and the bits contradict each other, the tool fails, the oracle accuses a class,
or a class differs or refuses and `resume_words` does not say why, or says so of one that agrees.
"""

from __future__ import annotations

import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch.distributed as dist

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "fixtures" / "stacks"), str(ROOT / "ci" / "bench")]

import judged  # noqa: E402
import resumed  # noqa: E402
from optimizer_classes import MODULES, classes, ways  # noqa: E402
from resume_words import ACCUSED, CAUSES, INTRODUCTION, JUDGED, REFUSALS  # noqa: E402

from pytest_precision import Cell, Parity, ParityError  # noqa: E402
from pytest_precision.options import Settings  # noqa: E402
from pytest_precision.plugin.resources import Resources  # noqa: E402

PAGE = ROOT / "docs" / "evidence" / "optimizers.md"

SECONDS = 120
"""Limit of one run without the tool."""

RUNS = (2, 2), (12, 4)
"""Steps before the save and after the load; the longer run where the shorter one moves nothing."""

LAST = "matrices closure"
"""The way that asks for least, whose error is shown."""

WIDTH = 160
"""Letters of a refusal that are shown."""


class Row(NamedTuple):
    """What comes of one optimizer.

    Attributes:
        package: that has it.
        name: of the class.
        outcome: `agrees`, `differs`, `refused` or `still`, or `WRONG` where the tool is.
        way: in which the loop went.
        why: in words.
        weights: whether the last weights are those of the uninterrupted run.
        oracle: what it said in an `Engine`: `judged`, `left alone`, `not run`, or `WRONG`.
        said: the oracle's words.
    """

    package: str
    name: str
    outcome: str
    way: str = ""
    why: str = ""
    weights: bool = True
    oracle: str = "not run"
    said: str = ""

    @property
    def key(self) -> str:
        """Return the name by which causes are listed."""
        return f"{self.package} {self.name}"


def _limit(number: int, frame: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} s")


def bare(package: str, name: str, saved: int, steps: int) -> tuple[str, bool, str]:
    """Return the way that an optimizer accepts, whether it resumes, and else why it refuses."""
    why = ""
    for way in ways(package, name):
        signal.alarm(SECONDS)
        try:
            with TemporaryDirectory() as folder:
                return way, resumed.alone(package, name, way, Path(folder), saved, steps), ""
        except Exception as error:  # whatever an optimizer raises is its answer
            if not why or way == LAST:
                why = f"{type(error).__name__}: {error}"
        finally:
            signal.alarm(0)
    return "", False, why


@contextmanager
def group() -> Iterator[None]:
    """Open a group of one rank, which the tool has too."""
    hook = sys.excepthook  # each group puts one in front of it
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
        sys.excepthook = hook


def row_of(package: str, name: str, resources: Resources) -> Row:
    """Return what comes of one optimizer."""
    for saved, rest in RUNS:
        row = resumes(package, name, resources, saved, rest)
        if row.outcome != "still":
            break
    if row.outcome in ("refused", "WRONG") or row.way not in ("plain", "matrices"):
        return row
    return row._replace(**by_the_oracle(row, resources))


def resumes(package: str, name: str, resources: Resources, saved: int, rest: int) -> Row:
    """Hold the loop of one optimizer to an uninterrupted one."""
    with group():
        way, same, why = bare(package, name, saved, saved + rest)
    if not way:
        return Row(package, name, "refused", why=why)
    row = Row(package, name, "agrees", way, weights=same)
    cell = Cell(sequence=f"train{saved}-save-load-train{rest}")
    side = partial(resumed.loop, package=package, name=name, way=way)
    try:
        whole = cell.replace(sequence=f"train{saved + rest}")
        verdict = parity(name, cell, resources).check(side, side, reference_cell=whole)
    except ParityError as error:
        refusal = error.verdict
        reason = (error.verdict.reason or "").removeprefix(f"{name}: ")
        if "no weight moved" in reason:
            return row._replace(outcome="still")
        if refusal.outcome != "fail":
            return row._replace(outcome="WRONG", why=f"{refusal.outcome}: {reason}")
        masters = (refusal.spread or {}).get("kinds", {}).get("master", {}).get("state", ["="])
        weights = same and {*masters} <= {"=", "."}
        return row._replace(outcome="differs", why=reason.partition(":")[0], weights=weights)
    except Exception as error:  # the same loop has run without the tool
        return row._replace(outcome="WRONG", why=f"{type(error).__name__}: {error}")
    if not same:
        return row._replace(outcome="WRONG", why="agrees although the weights differ")
    unshown = [words for words in verdict.left_out or {} if words.startswith("what is no tensor")]
    return row._replace(why="; ".join(unshown))


def by_the_oracle(row: Row, resources: Resources) -> dict[str, str]:
    """Return what the oracle says of an optimizer in an `Engine`."""
    arguments = {"package": row.package, "name": row.name}
    try:
        with group():
            judged.alone(**arguments, way=row.way)
    except Exception as error:  # it takes no groups, for example
        return {"said": f"{type(error).__name__}: {error}"}
    side = partial(judged.engine, **arguments)
    workload = partial(judged.Small, **arguments, way=row.way)
    try:
        verdict = parity(row.name, Cell(sequence="train3"), resources).check(
            side, partial(side, again=True), workload=workload
        )
    except ParityError as error:
        verdict = error.verdict
        accused = "is not what the workload's" in verdict.reason
        if not accused and "no weight moved" not in verdict.reason:
            return {"oracle": "WRONG", "said": f"{verdict.outcome}: {verdict.reason}"}
        if accused:
            is_listed = row.key in ACCUSED
            return {"oracle": "accused" if is_listed else "WRONG", "said": verdict.reason}
    except Exception as error:
        return {"oracle": "WRONG", "said": f"{type(error).__name__}: {error}"}
    said = (verdict.oracle or {}).get("candidate", {})
    reasons = " ".join(dict.fromkeys(said.get("unjudged", {}).values()))
    words = said.get("silent") or reasons
    return {"oracle": "judged" if said.get("judged") else "left alone", "said": words}


def parity(name: str, cell: Cell, resources: Resources) -> Parity:
    """Return what checks in one cell, in this process."""
    settings = Settings(device="cpu", timeout=120, ranks="inline")
    return Parity(name, cell, settings, resources.ranks(settings), resources.traces)


def page(rows: list[Row]) -> Iterator[str]:
    """Yield the page."""
    yield INTRODUCTION.format(classes=len(rows), packages=len(MODULES))
    yield "| package | classes | agree | differ | refuse | still |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for package in MODULES:
        outcomes = Counter(row.outcome for row in rows if row.package == package)
        counts = [outcomes[outcome] for outcome in ("agrees", "differs", "refused", "still")]
        numbers = " | ".join(map(str, (sum(counts), *counts)))
        release = version(package).partition("+")[0]
        yield f"| {package} {release} | {numbers} |"
    yield "\n## Optimizers that differ\n\n| optimizer | first difference | last weights | why |"
    yield "| --- | --- | --- | --- |"
    for row in _with(rows, "differs"):
        same = "agree" if row.weights else "differ"
        yield f"| {_named(row)} | {_cell(row.why)} | {same} | {CAUSES.get(row.key, '?')} |"
    yield "\n## Optimizers that refuse\n\n| optimizer | why |\n| --- | --- |"
    for row in _with(rows, "refused"):
        yield f"| {_named(row)} | {REFUSALS.get(row.key, '?')} |"
    still = [*_with(rows, "still")]
    if still:
        yield f"\n## Optimizers that move no weight in 16 steps\n\n{', '.join(map(_named, still))}"
    yield from by_rule(rows)


def by_rule(rows: list[Row]) -> Iterator[str]:
    """Yield the part of the page on the oracle."""
    outcomes = Counter(row.oracle for row in rows)
    accused = [row for row in rows if row.oracle == "accused"]
    ran = sum(outcomes.values()) - outcomes["not run"]
    yield JUDGED.format(
        ran=ran,
        judged=outcomes["judged"],
        alone=outcomes["left alone"],
        accused=len(accused) or "none",
    )
    judged = ", ".join(_named(row) for row in rows if row.oracle == "judged")
    yield f"The judged classes are {judged}."
    if accused:
        yield "\n| accused | its words | why it is right |\n| --- | --- | --- |"
    for row in accused:
        yield f"| {_named(row)} | {_cell(row.said)} | {ACCUSED[row.key]} |"


def _with(rows: list[Row], outcome: str) -> Iterator[Row]:
    return (row for row in rows if row.outcome == outcome)


def _named(row: Row) -> str:
    return f"{row.package} `{row.name}`"


def _cell(words: str) -> str:
    short = " ".join(words.split())
    return (short if len(short) <= WIDTH else f"{short[:WIDTH]} …").replace("|", "\\|")


def unexplained(row: Row) -> bool:
    """Return whether a row needs somebody to look."""
    explanations = {"differs": CAUSES, "refused": REFUSALS}
    wrong = [row.key in keys for outcome, keys in explanations.items() if outcome != row.outcome]
    is_explained = row.key in explanations.get(row.outcome, {row.key})
    return "WRONG" in (row.outcome, row.oracle) or any(wrong) or not is_explained


def main(packages: list[str]) -> int:
    """Write the page, or with names of packages only print what comes of these."""
    signal.signal(signal.SIGALRM, _limit)
    rows: list[Row] = []
    for package in packages or MODULES:
        resources = Resources()
        for name in classes(package):
            rows.append(row_of(package, name, resources))
            print(*rows[-1], sep=" | ", flush=True)
        resources.close()
    if not packages:
        PAGE.write_text("\n".join(page(rows)) + "\n")
    wrong = [row.key for row in rows if unexplained(row)]
    print(f"{len(rows)} classes; to look at: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
