"""`finished` and `planned` in report.json: whether all ran that was to run, however it ended."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from written import read_report

OPTIONS = "--precision-matrix", "--precision-report=report"

SUITE = """
    import os, pathlib, signal, time, pytest

    def interrupt_the_controller():
        while '"planned": 4' not in pathlib.Path("report/report.json").read_text():
            time.sleep(0.05)
        os.kill(os.getppid(), signal.SIGINT)

    @pytest.mark.precision_matrix(world_size=[1, 2, 3, 4])
    def test_it(cell):
        if cell.world_size == 2:
            {second}
        elif cell.world_size > 2:
            time.sleep({pause})
"""

TWICE = """
    import os, signal

    def pytest_keyboard_interrupt():
        os.kill(os.getpid(), signal.SIGINT)
"""

LATE_REFUSAL = """
    import pytest

    def pytest_collection_finish():
        raise pytest.UsageError("not like this")
"""


Ended = tuple[bool, "int | None", int]


@pytest.fixture
def suite(pytester: pytest.Pytester) -> Callable[..., None]:
    """Writes four cells, of which the second does something."""

    def suite(second: str = "pass", conftest: str = "", pause: float = 0) -> None:
        pytester.makepyfile(test_it=SUITE.format(second=second, pause=pause))
        pytester.makeconftest(conftest)

    return suite


def told() -> Ended:
    """What the file says: whether all ran, how many were to run, and how many did."""
    found = read_report("report/report.json")
    return found["finished"], found["planned"], len(found["cells"])


@pytest.mark.parametrize(
    ("second", "options", "conftest", "found"),
    [
        ("assert False", [], "", (True, 4, 4)),
        ("raise KeyboardInterrupt", [], "", (False, 4, 1)),
        ("pytest.exit(returncode=0)", [], "", (False, 4, 1)),
        ("assert False", ["-x"], "", (False, 4, 2)),
        ("assert False", ["--maxfail=1"], "", (False, 4, 2)),
        ("pass", [], LATE_REFUSAL, (False, 4, 0)),
        ("pass", ["--precision-select=world_size=9"], "", (False, None, 0)),
    ],
    ids=["failure", "Ctrl-C", "exit", "-x", "--maxfail", "late refusal", "refusal"],
)
def test_finished(
    pytester: pytest.Pytester,
    suite: Callable[..., None],
    second: str,
    options: list[str],
    conftest: str,
    found: Ended,
) -> None:
    """It is false whatever ends a session before its last test, whatever its exit status."""
    suite(second, conftest)
    pytester.runpytest_inprocess(*OPTIONS, *options, no_reraise_ctrlc=True)
    assert told() == found


def test_ctrl_c_twice(pytester: pytest.Pytester, suite: Callable[..., None]) -> None:
    """The second comes before pytest has set its exit status, which is still that of success."""
    suite("os.kill(os.getpid(), signal.SIGINT)", TWICE)
    pytester.runpytest_subprocess(*OPTIONS)
    assert told() == (False, 4, 1)


@pytest.mark.parametrize(
    ("second", "options", "found"),
    [
        pytest.param("assert False", [], (True, 4, 4), marks=pytest.mark.nightly),
        pytest.param("interrupt_the_controller()", [], (False, 4), marks=pytest.mark.nightly),
        ("assert False", ["-x"], (False, 4)),
    ],
    ids=["failure", "Ctrl-C", "-x"],
)
def test_finished_with_workers(
    pytester: pytest.Pytester,
    suite: Callable[..., None],
    second: str,
    options: list[str],
    found: tuple[object, ...],
) -> None:
    """A controller of xdist knows the number of cells from the first report of a worker."""
    pytest.importorskip("xdist")
    suite(second, pause=2)
    result = pytester.runpytest_subprocess(*OPTIONS, "-n2", *options)
    assert told()[: len(found)] == found
    assert "precision: --precision-matrix was given" not in result.stdout.str()


@pytest.mark.parametrize("option", ["--collect-only", "--setup-only", "--setup-plan", "--fixtures"])
def test_what_calls_no_test_leaves_the_report_alone(
    pytester: pytest.Pytester, suite: Callable[..., None], option: str
) -> None:
    """The last run's report stays; such a session has no result, and nothing to crash on."""
    suite()
    report = pytester.mkdir("report") / "report.json"
    report.write_text("of the last run")
    result = pytester.runpytest_inprocess(*OPTIONS, option)
    assert result.ret == pytest.ExitCode.OK
    assert "precision matrix" not in result.stdout.str()
    assert report.read_text() == "of the last run"
