"""The report as the plugin wires it: what the options of the command line make of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from written import read_report

MATRIX = """
import pytest

@pytest.mark.precision_matrix(precision=["bf16"], sequence=["train"], world_size=[1, 2])
def test_it(cell):
    if cell.world_size == 2:
        pytest.skip("needs a rank more")
"""

EARLIER_PAGE = '<!doctype html>\n<meta name="generator" content="pytest-precision">\n'


@pytest.fixture
def matrix(pytester):
    """Runs a matrix with the plugin itself and gives back report.json, None without."""

    def matrix(*options):
        pytester.makepyfile(test_it=MATRIX)
        pytester.runpytest_inprocess("--precision-report=report", *options)
        path = Path("report/report.json")
        return read_report(path) if path.exists() else None

    return matrix


def test_cells_without_a_check(matrix):
    """A cell is in the file with its axes, whether or not it came to a check."""
    found = matrix("--precision-matrix", "--precision-timeout=7")
    assert found["environment"]["flags"]["timeout"] == 7
    assert found["environment"]["world_sizes"] == [1, 2]
    assert [(e["axes"]["world_size"], e["outcome"], e["reason"]) for e in found["cells"]] == [
        (1, "pass", ""),
        (2, "skip", "needs a rank more"),
    ]


@pytest.mark.parametrize("verbosity", ["-v", "-q"])
def test_bare_cells_are_said_above_and_below_them(pytester, verbosity):
    """A green cell without judgements is not taken for a full one, however little is printed."""
    pytester.makepyfile(test_it=MATRIX)
    bare = ("-o", "precision_probes=none", verbosity)
    lines = pytester.runpytest_inprocess("--precision-matrix", *bare).stdout.str().splitlines()
    said = [line for line in lines if "judgements are off (precision_probes = none)" in line]
    assert len(said) == 2 - (verbosity == "-q")
    assert said[-1] == "precision: judgements are off (precision_probes = none)"


@pytest.mark.parametrize("options", [(), ("--precision-matrix", "--collect-only")])
def test_nothing_is_written_where_no_cell_runs(matrix, options):
    """The report of the last run survives a session that runs no cell."""
    assert matrix(*options) is None


def test_a_page_is_written_next_to_it(matrix):
    """After the last test, and only then: that of the session before is gone at the start."""
    page = Path("report/report.html")
    Path("report").mkdir()
    page.write_text(EARLIER_PAGE)
    matrix("--precision-matrix", "-p", "no:cacheprovider")
    assert "<h1>1 of 2 cells passed</h1>" in page.read_text()


def test_the_page_of_an_earlier_session_is_not_that_of_a_killed_one(pytester):
    """While tests run there is no page, since it would be read as theirs."""
    pytester.makepyfile(test_it=MATRIX)
    pytester.makeconftest(
        "import pathlib\n"
        "def pytest_runtest_setup(): assert not pathlib.Path('report/report.html').exists()\n"
    )
    pytester.mkdir("report").joinpath("report.html").write_text(EARLIER_PAGE)
    found = pytester.runpytest_inprocess("--precision-report=report", "--precision-matrix")
    found.assert_outcomes(passed=1, skipped=1)
    found.stdout.fnmatch_lines(["precision: the report is *report/report.html"])


@pytest.mark.parametrize("name", ["report.json", "report.html"])
def test_a_report_of_another_tool_stays(pytester, name):
    """The session ends before it collects, names the file and says what to do; nothing is written.

    Without a test to call, it does not matter what is there.
    """
    pytester.makepyfile(test_it="raise AssertionError('collected')")
    theirs = pytester.mkdir("report") / name
    theirs.write_bytes(b'{"schema": 1, "precious": true}')
    options = ("--precision-report=report", "--precision-matrix")
    found = pytester.runpytest_inprocess(*options)
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines(
        [f"ERROR: --precision-report=*report: expected a new file, *{name}, which *; move it away*"]
    )
    assert theirs.read_bytes() == b'{"schema": 1, "precious": true}'
    assert [path.name for path in theirs.parent.iterdir()] == [name]


def test_a_page_that_another_tool_makes_meanwhile_stays(pytester):
    """The terminal says that the page could not be written, and the tests have their results."""
    pytester.makepyfile(test_it=MATRIX)
    pytester.makeconftest(
        "import pathlib\n"
        "def pytest_runtest_setup(): pathlib.Path('report/report.html').write_text('theirs')\n"
    )
    found = pytester.runpytest_inprocess("--precision-report=report", "--precision-matrix")
    found.assert_outcomes(passed=1, skipped=1)
    found.stdout.fnmatch_lines(["*report.html could not be written: *expected a new file*"])
    assert Path("report/report.html").read_text() == "theirs"
    assert len(read_report("report/report.json")["cells"]) == 2


def test_a_baseline_of_another_tool_stays(pytester):
    """A file with the name of a baseline ends a session that is to write some, and no other one."""
    pytester.makepyfile(test_it=MATRIX)
    theirs = pytester.mkdir("precision_baselines") / "once.0123abcd.txt"
    theirs.write_bytes(b"results of another tool\n")
    options = ("--precision-matrix", "-p", "no:cacheprovider")
    found = pytester.runpytest_inprocess(*options, "--precision-baseline=update")
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines(["ERROR: --precision-baseline=update: *once.0123abcd.txt, which *"])
    found = pytester.runpytest_inprocess(*options, "--precision-baseline=check")
    found.assert_outcomes(passed=1, skipped=1)
    assert theirs.read_bytes() == b"results of another tool\n"


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (
            "shutil.rmtree('report')",
            "*/report.json could not be written: No such file or directory",
        ),
        (
            "os.unlink('report/report.json'); os.mkdir('report/report.json')",
            "*report.json*, which is a folder; name another",
        ),
        ("os.mkdir('report/report.html')", "report.html could not be written: *which is a folder*"),
    ],
)
def test_a_report_that_cannot_be_written_ends_no_session(pytester, what, told):
    """The tests after it run, the exit status is theirs, and the last line says what is lacking."""
    own = MATRIX.replace(
        "if cell", f"import os, shutil\n    if cell.world_size == 1: {what}\n    if cell"
    )
    pytester.makepyfile(test_it=own)
    found = pytester.runpytest_inprocess("--precision-report=report", "--precision-matrix")
    found.assert_outcomes(passed=1, skipped=1)
    assert found.ret == pytest.ExitCode.OK
    found.stdout.fnmatch_lines([f"precision: {told}"])
