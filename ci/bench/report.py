"""What the report costs a cell, beside what pytest itself costs an empty test.

    python ci/bench/report.py [--cells 10000] [--rounds 3]

Adding results is measured without a pause between the cells, which is when report.json is furthest
behind; the times are per cell, medians over the rounds, and the ratio is to an empty test that
pytest runs in the same round. The page is loaded by Chromium, from a file until it is painted. A
figure that misses its target is marked.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import tempfile
import time
from itertools import count
from pathlib import Path

import measure
import pytest
import sample

from pytest_precision.parity.verdict import Divergence, Ruling, Verdict
from pytest_precision.report import json_file, terminal
from pytest_precision.report.collect import Results
from pytest_precision.report.page import render
from pytest_precision.report.provenance import environment

TESTS = 500
"""Empty tests of the base."""

RATIO = 0.25
GROWTH = 1.5
SUMMARY = 2.0
PAGE = 3.0
LOAD = 1.0
"""Targets: ratio to an empty test; last half of the cells to the first; seconds of the summary; MB
of the page; seconds until a browser has painted a page of `LOADED` cells."""

LOADED = 2400

PAINTED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""Waits until the frame after the next one begins: the one before it is painted then."""

DIVERGENCE = Divergence(
    op=1,
    step=2,
    phase="optimizer_step",
    kind="param",
    name="layers.0.weight",
    rank=0,
    index=(3, 17),
    candidate=1.5,
    reference=1.25,
    ulp=1,
    rel_l2=1e-3,
    mismatched=0.38,
    signature="",
    error="",
    evidence={"looked_at": 1, "likewise": []},
)

KINDS = (
    "used_param",
    "loss",
    "grad",
    "reduced_grad",
    "grad_norm",
    "lr",
    "exp_avg",
    "master",
    "param",
)

SPREAD = {
    "op": [-1, 0, 1, 2, 3],
    "operation": ["init", "train", "train", "train", "train"],
    "step": [0, 1, 2, 3, 4],
    "kinds": {
        kind: {
            "dtypes": [["bfloat16", "bfloat16"]],
            "state": [".", "=", "values", "values", "values"],
            "mismatched": [None, None, 1 / 7, 1.0, 33 / 49],
            "max_ulp": [None, None, 91, 29551, 30553],
            "rel_l2": [None, None, 1 / 1517, 1 / 29, 1 / 13],
        }
        for kind in KINDS
    },
}

FAILED = Ruling(
    outcome="fail",
    gate="agreement",
    reason="param differs at step 2: 38 % of layers.0.weight",
    divergence=DIVERGENCE,
    details=tuple("a line of the table of kinds and steps" for _ in range(12)),
)

SEQUENCES = ("train4", "train2-eval-train2", "train2-save-load-train2")


def reports(number: int) -> list[pytest.TestReport]:
    """The three reports of a cell, as pytest would hand them over; one in ten cells fails."""
    fails = number % 10 == 0
    axes = {
        "precision": "bf16",
        "primary_weight": "bf16" if fails else "fp32",
        "grad_accum_fusion": number % 2 == 0,
        "sequence": SEQUENCES[number % 3],
        "world_size": number % 4 + 1,
        "seed": number // 24,
    }
    test = "tests/test_experts.py::test_grouped_experts"
    nodeid = f"{test}[{'-'.join(map(str, axes.values()))}]"
    verdict = Verdict(
        nodeid=nodeid,
        axes=axes,
        candidate="layouts.experts:grouped",
        reference="layouts.experts:discrete",
        workload="pytest_precision.workloads:moe",
        criterion="bitwise",
        ruling=FAILED if fails else Ruling(),
        observations=240,
        bytes=1_000_000,
        seconds=0.2,
        spread=SPREAD if fails else None,
    )
    cell = {"test": test, "axes": axes, "number": number, "total": 0}
    return [
        pytest.TestReport(
            nodeid,
            ("tests/test_experts.py", 3, "test_grouped_experts"),
            {},
            "failed" if fails and when == "call" else "passed",
            verdict.reason if fails and when == "call" else None,
            when,
            precision_cell=cell,
            precision=[verdict.as_dict()] if when == "call" else [],
            precision_raised=[0] if fails and when == "call" else [],
        )
        for when in ("setup", "call", "teardown")
    ]


def add(cells: list[list[pytest.TestReport]], folder: Path | None) -> tuple[Results, list[float]]:
    """Add all cells; the results, and the seconds of either half of the cells."""
    results = Results()
    file = None if folder is None else json_file.JsonFile(folder, environment(device="", flags={}))
    seconds = []
    middle = len(cells) // 2
    for half in (cells[:middle], cells[middle:]):
        begin = time.perf_counter()
        for cell in half:
            for report in cell:
                ended = results.add(report)
            if file is not None and ended is not None:
                file.put(ended[0], [check.entry for check in ended[1].checks])
        seconds.append(time.perf_counter() - begin)
    if file is not None:
        file.close()
    return results, seconds


def empty_tests(folder: Path) -> None:
    """Run the base; the pass that only collects is a part of every session with cells, too."""
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([str(folder / "test_empty.py"), "-p", "no:cacheprovider", "-q"])


def summarise(folder: Path, results: Results) -> float:
    """Seconds of the terminal section, in a session without tests."""
    seconds = []

    class Summary:
        def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
            begin = time.perf_counter()
            terminal.write_summary(terminalreporter, results, seconds=0.0)
            seconds.append(time.perf_counter() - begin)

    with contextlib.redirect_stdout(io.StringIO()):
        pytest.main([str(folder / "test_none.py"), "-p", "no:cacheprovider"], plugins=[Summary()])
    return seconds[0]


def one_write(folder: Path, results: Results) -> tuple[float, int]:
    """Seconds of a write of report.json with all cells, and its bytes."""
    file = json_file.JsonFile(folder, environment(device="", flags={}))
    for key, cell in results.cells.items():
        file.put(key, [check.entry for check in cell.checks])
    begin = time.perf_counter()
    file.close()
    return time.perf_counter() - begin, file.path.stat().st_size


def one_page(folder: Path) -> tuple[float, float]:
    """Seconds of rendering the page of a folder, and its MB."""
    begin = time.perf_counter()
    page = render.write_page(folder)
    return time.perf_counter() - begin, page.stat().st_size / 1e6


def one_load(folder: Path, rounds: int) -> float:
    """Median seconds from the address of a folder's page to its first picture, in a new tab."""
    seconds = []
    with sample.chromium() as browser:
        for _ in range(rounds):
            tab = browser.new_page()
            begin = time.perf_counter()
            tab.goto((folder / "report.html").as_uri())
            tab.evaluate(PAINTED)
            seconds.append(time.perf_counter() - begin)
            tab.close()
    return statistics.median(seconds)


def row(name: str, figure: str, target: str = "", missed: bool = False) -> None:
    """Print one row of the table."""
    print(f"{name:<44} {figure:>9} {target:>8}  {'MISSED' if missed else ''}", flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", default=10_000, type=int)
    parser.add_argument("--rounds", default=3, type=int)
    options = parser.parse_args()
    cells = [reports(number) for number in range(options.cells)]
    halves: list[list[float]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "pytest.ini").write_text("[pytest]\n")
        (folder / "test_none.py").write_text("")
        (folder / "test_empty.py").write_text(
            "import pytest\n"
            f"@pytest.mark.parametrize('number', range({TESTS}))\n"
            "def test_empty(number): pass\n"
        )
        number = count()
        seconds = measure.interleave(
            {
                "empty": lambda: empty_tests(folder),
                "without": lambda: add(cells, None),
                "with": lambda: halves.append(add(cells, folder / str(next(number)))[1]),
            },
            options.rounds,
        )
        results, _ = add(cells, None)
        write, size = one_write(folder / "write", results)
        summary = summarise(folder, results)
        page, page_size = one_page(folder / "write")
        shown, _ = add([reports(number) for number in range(LOADED)], None)
        one_write(folder / "shown", shown)
        one_page(folder / "shown")
        load = one_load(folder / "shown", options.rounds)
    print(f"{options.cells} cells, per cell")
    row("an empty test, ms", f"{statistics.median(seconds['empty']) / TESTS * 1e3:.3f}")
    for name in ("without", "with"):
        row(f"{name} report.json, ms", f"{statistics.median(seconds[name]) / len(cells) * 1e3:.3f}")
        ratio = measure.ratio(seconds, name, "empty") * TESTS / len(cells)
        row(f"{name} report.json, ratio", f"{ratio:.3f}", f"<= {RATIO}", ratio > RATIO)
    growth = statistics.median(times[-1] / times[0] for times in halves)
    row("last half of the cells to the first", f"{growth:.2f}", f"<= {GROWTH}", growth > GROWTH)
    row("one write of all cells, ms", f"{write * 1e3:.1f}")
    row("size of report.json, MB", f"{size / 1e6:.1f}")
    row("a write after every cell would take, s", f"{write * len(cells) / 2:.0f}")
    row("report.json is behind by at most, s", f"{write * json_file.WRITING_SHARE:.2f}")
    row("the page, s", f"{page:.2f}")
    row("size of the page, MB", f"{page_size:.1f}", f"<= {PAGE}", page_size > PAGE)
    row(f"the page of {LOADED} cells in a browser, s", f"{load:.2f}", f"<= {LOAD}", load > LOAD)
    row("summary, s", f"{summary:.2f}", f"<= {SUMMARY}", summary > SUMMARY)


if __name__ == "__main__":
    main()
