"""What the tests of a run cost, by folder, file, test and kind of process, from a JUnit file.

    python ci/bench/durations.py [build/tests.xml] [--than OLDER.xml] [--files 25] [--tests 20]

Seconds are processor seconds of a test's whole tree of processes, as `tests/costs.py` measures
them: the time for which a worker of pytest-xdist waits is not in them. Two processors that share a
core take longer for the same work when both are busy, so compare files of runs with as many
workers on one machine. With an older file, each folder has its ratio.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

KIND = "started "
"""What the property of a kind of process begins with; then comes the kind."""


@dataclass(frozen=True)
class Cost:
    """What a test took.

    Attributes:
        file: of the test.
        name: of the test, with its parameters.
        seconds: processor seconds of its tree of processes.
        started: kind of process to how many it started, and their processor seconds.
        unexplained: whether it takes long and has no mark `long` that says why.
    """

    file: str
    name: str
    seconds: float
    started: dict[str, tuple[int, float]]
    unexplained: bool


def costs_of(report: Path) -> list[Cost]:
    """Return what each test of a JUnit file took; a skipped test took nothing."""
    return [_cost(case) for case in ElementTree.parse(report).iter("testcase")]


def _cost(case: ElementTree.Element) -> Cost:
    properties = {p.get("name", ""): p.get("value", "") for p in case.iter("property")}
    started = {}
    for name, value in properties.items():
        if name.startswith(KIND):
            number, seconds = value.split()
            started[name.removeprefix(KIND)] = int(number), float(seconds)
    file = case.get("classname", "").replace(".", "/")
    seconds = float(properties.get("processor", 0))
    return Cost(file, case.get("name", ""), seconds, started, "unexplained" in properties)


def summed(costs: Iterable[Cost], by: Callable[[Cost], str]) -> Counter[str]:
    """Return the processor seconds of tests, added up by what `by` says of each."""
    seconds: Counter[str] = Counter()
    for cost in costs:
        seconds[by(cost)] += cost.seconds
    return seconds


def folder_of(cost: Cost) -> str:
    """Return the folder below `tests` of a test."""
    return "/".join(cost.file.split("/")[:2])


def starts(costs: Iterable[Cost]) -> list[tuple[str, int, float]]:
    """Return each kind of process, how many were started, and their processor seconds."""
    numbers: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for cost in costs:
        for kind, (number, taken) in cost.started.items():
            numbers[kind] += number
            seconds[kind] += taken
    return [(kind, numbers[kind], taken) for kind, taken in seconds.most_common()]


def table(costs: list[Cost], older: list[Cost], files: int, tests: int) -> Iterable[str]:
    """Yield the lines of all tables."""
    before = summed(older, folder_of)
    in_all = sum(cost.seconds for cost in costs)
    yield f"{in_all:9.1f} s  all {len(costs)} tests" + _ratio(in_all, before.total())
    for folder, seconds in summed(costs, folder_of).most_common():
        yield f"{seconds:9.1f} s  {folder}" + _ratio(seconds, before[folder])
    yield "\nprocesses"
    for kind, number, seconds in starts(costs):
        yield f"{seconds:9.1f} s  {number:6} {kind}"
    yield f"\nthe {files} files that cost most"
    for name, seconds in summed(costs, lambda cost: cost.file).most_common(files):
        yield f"{seconds:9.1f} s  {name}"
    yield f"\nthe {tests} tests that cost most"
    for cost in sorted(costs, key=lambda cost: -cost.seconds)[:tests]:
        kinds = ", ".join(f"{number} {kind}" for kind, (number, _) in cost.started.items())
        yield f"{cost.seconds:9.1f} s  {cost.file}.py::{cost.name}" + (f" ({kinds})" * bool(kinds))
    yield from _unexplained(costs)


def _unexplained(costs: Iterable[Cost]) -> Iterable[str]:
    tests = [f"{cost.file}.py::{cost.name}" for cost in costs if cost.unexplained]
    if tests:
        yield "\ntests that take long and do not say why: give them the mark long(reason)"
        yield from tests


def _ratio(seconds: float, before: float) -> str:
    return f"  x{seconds / before:.2f}" if before else ""


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("report", type=Path, nargs="?", default=Path("build/tests.xml"))
    parser.add_argument("--than", type=Path, help="an older file to compare with")
    parser.add_argument("--files", type=int, default=25, help="how many files are listed")
    parser.add_argument("--tests", type=int, default=20, help="how many tests are listed")
    args = parser.parse_args()
    older = costs_of(args.than) if args.than else []
    print(*table(costs_of(args.report), older, args.files, args.tests), sep="\n")


if __name__ == "__main__":
    main()
