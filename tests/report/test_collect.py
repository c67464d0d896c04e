"""Collect: one record a cell and check, whatever ended the test."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from made_up import NODEID, REASON, reports, run, verdict

from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.collect import ERROR_LINES, Results


def collect(*found: pytest.TestReport) -> CellResult:
    results = Results()
    for report in found:
        results.add(report)
    (cell,) = results.cells.values()
    return cell


def worker(name: str) -> SimpleNamespace:
    """What xdist puts on a report, as far as pytest and we read it."""
    return SimpleNamespace(gateway=SimpleNamespace(id=name), _workerinfocache=name)


def statuses(cell: CellResult) -> list[str]:
    return [check.status for check in cell.checks]


def test_one_check_a_verdict():
    """Each verdict of a test is a check, in order, and its entry is the verdict itself."""
    cell = collect(*run(verdicts=[verdict(), verdict("skip", "no such format")]))
    assert statuses(cell) == ["pass", "skip"]
    place = {"number": 0, "line": 1, "test_seconds": 1.5}
    assert cell.checks[0].entry == verdict() | {"status": "pass", "pytest": "passed"} | place


def test_cell_is_returned_when_its_test_has_ended():
    """Only the last report of a test completes its cell, with the time of all phases."""
    results = Results()
    setup, call, teardown = run(verdicts=[verdict()])
    assert results.add(setup) is None
    assert results.add(call) is None
    ended = results.add(teardown)
    assert ended is not None
    assert ended[1].seconds == 1.5


@pytest.mark.parametrize("outcome", ["fail", "vacuous", "error"])
def test_failing_verdict_fails_the_cell(outcome):
    """A verdict whose error ends the test keeps its outcome and stands alone."""
    cell = collect(*run("failed", verdicts=[verdict(outcome, REASON)], raised=(0,)))
    assert statuses(cell) == [outcome]
    assert cell.failing


def test_xfail_is_an_expected_failure():
    """A failing verdict under xfail is no failure; the entry keeps the verdict's outcome."""
    found = run("skipped", verdicts=[verdict("fail", REASON)], wasxfail="no master weights")
    cell = collect(*found)
    assert statuses(cell) == ["xfail"]
    assert not cell.failing
    assert cell.checks[0].reason == "no master weights"
    assert cell.checks[0].entry["outcome"] == "fail"
    assert cell.checks[0].entry["reason"] == REASON
    assert cell.checks[0].entry["pytest"] == "xfailed"


def test_caught_failure_is_an_expected_failure():
    """A test that passes although a verdict failed has caught it: it was expected."""
    assert statuses(collect(*run(verdicts=[verdict("fail", REASON)]))) == ["xfail"]


def test_the_words_of_a_failure_decide_nothing():
    """A test that caught a verdict may quote it; only the error itself tells that it was raised."""
    quoted = run("failed", verdicts=[verdict("fail", REASON)], text=f"E  expected no '{REASON}'")
    assert statuses(collect(*quoted)) == ["xfail", "fail"]


def test_assertion_after_a_caught_failure_fails():
    """The test's own assertion is one more check, with its own reason."""
    cell = collect(*run("failed", verdicts=[verdict("fail", REASON)], text="assert 2 == 1"))
    assert statuses(cell) == ["xfail", "fail"]
    assert cell.checks[1].reason == "assert 2 == 1"
    assert cell.checks[1].entry["candidate"] == ""


def test_strict_unexpected_pass_fails():
    """A strict xfail that passes fails the cell as it fails the test."""
    cell = collect(*run("failed", verdicts=[verdict()], text="[XPASS(strict)] no master"))
    assert statuses(cell) == ["pass", "fail"]
    assert cell.checks[1].reason == "[XPASS(strict)] no master"


def test_unexpected_pass_is_told_apart():
    """A pass that xfail without strict did not expect is neither a pass nor a failure."""
    cell = collect(*run("passed", verdicts=[verdict()], wasxfail="no master"))
    assert statuses(cell) == ["xpass"]


def test_skip_in_a_fixture_is_a_skip():
    """A cell without a verdict is an entry with the skip's reason."""
    text = ("conftest.py", 3, "Skipped: needs 3 ranks, 2 are there")
    cell = collect(*reports(("setup", "skipped"), ("teardown", "passed"), text=text))
    entry = cell.checks[0].entry
    assert statuses(cell) == ["skip"]
    assert (entry["outcome"], entry["reason"]) == ("skip", "needs 3 ranks, 2 are there")
    assert (entry["nodeid"], entry["axes"]["world_size"]) == (NODEID, 2)


def test_skip_in_the_body_keeps_the_verdicts():
    """What was checked before the body skipped stays checked."""
    text = ("test_moe.py", 3, "Skipped: later")
    assert statuses(collect(*run("skipped", verdicts=[verdict()], text=text))) == ["pass", "skip"]


def test_broken_fixture_is_an_error():
    """An error in set-up is an error of the cell, with the first line of the text."""
    found = reports(("setup", "failed"), ("teardown", "passed"), text="\nOSError: no disk\nmore")
    assert collect(*found).checks[0].entry["reason"] == "OSError: no disk"
    assert collect(*found).status == "error"


def test_broken_teardown_is_an_error_beside_the_verdict():
    """An error in tear-down does not take the verdict away."""
    found = reports(
        ("setup", "passed"), ("call", "passed"), ("teardown", "failed"), verdicts=[verdict()]
    )
    assert statuses(collect(*found)) == ["pass", "error"]


def test_cell_that_checks_nothing_still_is_a_cell():
    """A matrix test without a check has the outcome of pytest."""
    assert statuses(collect(*run())) == ["pass"]
    assert statuses(collect(*run("failed", text="assert 0"))) == ["fail"]


def test_crashed_worker_is_an_error():
    """A crash is reported without the cell; its set-up has told which cell it was."""
    (setup,) = reports(("setup", "passed"))
    (crash,) = reports(("???", "failed"), text="worker 'gw0' crashed")
    del crash.precision_cell, crash.precision
    cell = collect(setup, crash)
    assert (cell.status, cell.axes["world_size"]) == ("error", 2)


def test_crash_before_the_first_report_is_an_error():
    """A crash in a cell that nothing is known of counts for its matrix, without axes."""
    (crash,) = reports(("???", "failed"), text="worker 'gw0' crashed", nodeid=NODEID + "x")
    del crash.precision_cell, crash.precision
    results = Results()
    for report in [*run(verdicts=[verdict()]), crash]:
        results.add(report)
    assert [(cell.status, bool(cell.axes)) for cell in results.cells.values()] == [
        ("pass", True),
        ("error", False),
    ]


def test_other_tests_are_no_cells():
    """A test without a cell and without a verdict is not taken."""
    results = Results()
    for report in run():
        del report.precision_cell
        assert results.add(report) is None
    assert results.cells == {}


def test_check_without_a_matrix_counts():
    """A verdict of a test that is in no matrix brings its own axes."""
    found = run(verdicts=[verdict()])
    for report in found:
        del report.precision_cell
    assert collect(*found).axes["precision"] == "bf16"


def test_the_last_run_counts():
    """A test that runs again replaces its record, in its place."""
    results = Results()
    others = run(nodeid="test_moe.py::test_experts[other]")
    failed = run("failed", verdicts=[verdict("fail", REASON)], raised=(0,))
    for report in [*failed, *others, *run(verdicts=[verdict()])]:
        results.add(report)
    assert [cell.status for cell in results.cells.values()] == ["pass", "pass"]
    assert [cell.nodeid for cell in results.cells.values()] == [NODEID, others[0].nodeid]


def test_rerun_is_no_result():
    """What pytest-rerunfailures marks as to be rerun does not count, whichever phase failed."""
    results = Results()
    for report in reports(("setup", "passed"), ("call", "rerun"), ("teardown", "passed")):
        assert results.add(report) is None
    assert results.cells == {}


def test_the_run_after_a_rerun_counts():
    """A run that is cut off to be rerun leaves nothing behind."""
    results = Results()
    cut_off = reports(("setup", "passed"), ("call", "rerun"), verdicts=[verdict("fail", REASON)])
    for report in [*cut_off, *run(verdicts=[verdict()])]:
        results.add(report)
    (cell,) = results.cells.values()
    assert (statuses(cell), cell.seconds) == (["pass"], 1.5)


def test_workers_do_not_replace_each_other():
    """Under --dist=each a failure on one worker is not hidden by the pass on another."""
    results = Results()
    failed = run("failed", verdicts=[verdict("fail", REASON)], raised=(0,))
    for one, other in zip(failed, run(verdicts=[verdict()]), strict=True):
        one.node, other.node = worker("gw0"), worker("gw1")
        results.add(one)
        results.add(other)
    assert [cell.status for cell in results.cells.values()] == ["fail", "pass"]


def test_subtest_does_not_end_the_call():
    """A subtest reports before its test: the test's own report counts, a failure stays known."""
    first = run("failed", verdicts=[verdict("fail", REASON)], raised=(0,))
    last = run("failed", verdicts=[verdict("fail", REASON)], text="contains 1 failed subtest")
    cell = collect(*first[:2], *last[1:])
    assert statuses(cell) == ["fail"]


def test_an_error_outside_of_checks_is_told_in_full():
    """Its first line is the reason, and the last of the others are the details."""
    lines = ["", "rank 1 of 2 died", *map(str, range(300))]
    (check,) = collect(*run("failed", text="\n".join(lines))).checks
    assert check.reason == "rank 1 of 2 died"
    assert check.entry["details"] == lines[-ERROR_LINES:]
