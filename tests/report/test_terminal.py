"""The terminal section and report.json of real pytest sessions."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_up import culprit
from written import read_report

from pytest_precision.parity.culprit import Culprit
from pytest_precision.report import terminal
from pytest_precision.report.status import IN_PART

HEAD = """
import pytest
from plugin_of_the_tests import cells
"""

MATRIX = (
    HEAD
    + """
@cells(precision=["bf16", "mxfp8"], primary_weight=["fp32", "bf16"], world_size=[1, 2], fused=[0])
def test_experts(axes, check):
    if axes["primary_weight"] == "bf16":
        check("fail", f"{axes['world_size']} elements of layers.0.weight differ")
    check()
"""
)

SECTION = [
    "=* precision matrix =*",
    "test_it.py::test_experts",
    "  with fused=0",
    "  primary_weight  fp32  bf16",
    "      world_size  1 2   1 2",
    "  precision",
    "  bf16            . .   F F",
    "  mxfp8           . .   F F",
    "",
    "4 of 8 cells failed",
    "all 4 failing cells have primary_weight=bf16; no passing cell has",
    "  F 4x 1 elements of layers.0.weight differ",
    "    test_it.py::test_experts[[]bf16-bf16-1-0] and 3 more alike",
    "",
    "8 cells in *: 4 passed (.), 4 failed (F)",
]


PATIENT = """
import pytest
from pytest_precision.report import session

def pytest_configure(config):
    patch = pytest.MonkeyPatch()
    patch.setattr(session, "INTERVAL", 0.0)
    config.add_cleanup(patch.undo)
"""

HERE = Path(__file__).parent

OWN = ("plugin_of_the_tests", "no:precision", "no:cacheprovider", "no:hypothesispytest")
"""What sessions load, and leave out."""

WITH_WORKERS = ("-n", "2")


@pytest.fixture
def session(pytester, monkeypatch):
    """Runs a test file in a pytest session of its own, with the plugin of these tests."""
    monkeypatch.setenv("PYTHONPATH", f"{HERE}:{HERE.parents[1]}")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def session(source, *arguments):
        pytester.makepyfile(test_it=source)
        # Workers need a controller whose environment they inherit.
        apart = "-n" in arguments
        run = pytester.runpytest_subprocess if apart else pytester.runpytest_inprocess
        own = (f"-p{plugin}" for plugin in OWN)
        return run(*own, *arguments, **({} if apart else {"no_reraise_ctrlc": True}))

    return session


@pytest.fixture(scope="module")
def with_workers(tmp_path_factory):
    """A session with two workers, which writes its progress at once, and its folder."""
    folder = tmp_path_factory.mktemp("workers")
    (folder / "test_it.py").write_text(MATRIX)
    (folder / "conftest.py").write_text(PATIENT)
    words = ["-m", "pytest", *(f"-p{plugin}" for plugin in OWN), "--junitxml=junit.xml"]
    environment = {**os.environ, "PYTHONPATH": f"{HERE}:{HERE.parents[1]}"}
    environment.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(
        [sys.executable, *words, *WITH_WORKERS],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
    )
    lines = done.stdout.splitlines(), done.stderr.splitlines()
    return pytest.RunResult(done.returncode, *lines, 0.0), folder


@pytest.fixture
def matrix(session, request):
    """Runs the matrix; the session with workers serves all tests of it."""

    def matrix(*arguments):
        if arguments == WITH_WORKERS:
            found, folder = request.getfixturevalue("with_workers")
            os.chdir(folder)
            return found
        Path("conftest.py").write_text(PATIENT)
        return session(MATRIX, "--junitxml=junit.xml", *arguments)

    return matrix


@pytest.mark.parametrize("mode", [(), WITH_WORKERS, ("-p", "no:randomly", "-v")])
def test_section(matrix, mode):
    """Grid, what failing cells share, reasons and counts: the same in every mode."""
    found = matrix(*mode)
    found.assert_outcomes(passed=4, failed=4)
    lines = SECTION
    if "-v" in mode:
        lines = [*SECTION[:12], "    test_it.py::test_experts[[]bf16-bf16-1-0]"]
    found.stdout.fnmatch_lines(lines, consecutive=True)
    found.stdout.no_fnmatch_line("*\x1b*")


def test_passing_cells_have_their_grid(session):
    """A test whose cells all pass is shown as any other."""
    found = session(HEAD + "@cells(w=[1, 2])\ndef test_fine(axes, check): check()\n")
    found.stdout.fnmatch_lines(["test_it.py::test_fine", "  w  1  2", "     .  ."])


def test_the_legend_says_what_was_not_compared(session):
    """Also of cells that pass: one line a reason, with the number of cells that it holds for."""
    source = HEAD + (
        "@cells(w=[1, 2, 3])\n"
        "def test_it(axes, check):\n"
        "    hidden = {'param': 'it is late', 'scale': 'it is late'} if axes['w'] > 1 else {}\n"
        "    check(fields={'left_out': {'rng': 'by design'} | hidden})\n"
    )
    lines = [
        "not compared in all cells: rng: by design",
        "not compared in 2 cells: param, scale: it is late",
        "",
        "3 cells in *: 3 passed (.)",
    ]
    session(source).stdout.fnmatch_lines(lines, consecutive=True)


def test_a_pass_in_part_has_a_mark_of_its_own(session):
    """Under another criterion a cell proves less; what a side cannot show has no mark."""
    source = HEAD + (
        "@cells(w=[1, 2, 3])\n"
        "def test_it(axes, check):\n"
        "    less = {2: {'criterion': 'ulp(2)'}, 3: {'left_out': {'rng': 'by design'}}}\n"
        "    check(fields=less.get(axes['w']))\n"
    )
    mark = f"~ {IN_PART}"
    lines = ["  w  1  2  3", "     .  ~  .", mark, "not compared in 1 cell: rng: by design"]
    session(source).stdout.fnmatch_lines([*lines, "*: 2 passed (.), 1 passed in part (~)"])


def test_time_is_that_of_the_session(session, pytester):
    """Workers run tests side by side, so that the sum of their durations is nobody's time."""
    pytester.makeconftest(
        "import pytest\n"
        "@pytest.hookimpl(wrapper=True)\n"
        "def pytest_runtest_makereport():\n"
        "    report = yield\n"
        "    report.duration = 36000.0\n"
        "    return report\n"
    )
    source = HEAD + "@cells(w=[1, 2])\ndef test_it(axes, check): check()\n"
    found = session(source, "--folder=report")
    found.stdout.re_match_lines([r"2 cells in \d+(\.\d)? s: 2 passed \(\.\)"])
    report = read_report("report/report.json")
    assert report["seconds"] < 3600.0 < report["cells"][0]["test_seconds"]


def test_verbose_says_what_took_the_time(session):
    """Recording the sides, comparing them, and what the tests do besides."""
    fields = {"seconds": 5.0, "timing": {"candidate": 1.5, "reference": 3.0}}
    source = HEAD + f"@cells(w=[1, 2])\ndef test_it(axes, check): check(fields={fields})\n"
    line = "time of the tests: candidates 3.0 s, references 6.0 s, comparison 1.0 s, *"
    session(source, "-v").stdout.fnmatch_lines([line])
    session(source).stdout.no_fnmatch_line("time of the tests: *")


def test_verbose_names_what_no_cell_of_a_test_exercised(session):
    """What one cell of the test did is left out."""
    source = (
        HEAD
        + """
@cells(seed=[1, 2])
def test_it(axes, check):
    check(fields={"unexercised": ["no load", "no decay"][: axes["seed"]]})
"""
    )
    line = "never exercised in test_it.py::test_it: no load"
    session(source, "-v").stdout.fnmatch_lines([line])
    assert "never exercised" not in session(source).stdout.str()


def test_verbose_says_how_far_rounding_goes(session):
    """Of each kind of tensor, the largest error that `noise()` measured in a cell of the test."""
    noise = {"loss": {"rel_l2": 1e-7, "of": "microbatch0"}}
    source = (
        HEAD
        + f"@cells(seed=[1, 2])\ndef test_it(axes, check): check(fields={{'noise': {noise}}})\n"
    )
    lines = session(source, "-v").stdout.str()
    text = "noise of the reference (relative L2 error) in test_it.py::test_it: loss 1e-07"
    assert text in " ".join(lines.split())


def test_verbose_says_which_updates_were_not_judged(session):
    """Each reason once, whatever the tensors and sides are that it holds for."""
    reason = "it had no gradient in an earlier step"
    oracle = {
        "candidate": {"rule": "AdamW", "judged": 4, "worst": 0.5, "unjudged": {"a": reason}},
        "reference": {"silent": "a script declares no optimizer_rule"},
    }
    source = (
        HEAD
        + f"@cells(seed=[1, 2])\ndef test_it(axes, check): check(fields={{'oracle': {oracle}}})\n"
    )
    text = f"a script declares no optimizer_rule; {reason}"
    lines = session(source, "-v").stdout
    assert f"updates not judged by a rule in test_it.py::test_it: {text}" in " ".join(
        lines.str().split()
    )


def test_only_passing_cells_speak_against_a_statement(session):
    """An expected failure shares what the failures share, and that is no objection."""
    source = HEAD + (
        "@cells(world_size=[1, 2], seed=[1, 2, 3])\n"
        "def test_it(axes, check):\n"
        "    if axes['seed'] == 3: pytest.xfail('known')\n"
        "    check('fail' if axes['world_size'] == 2 else 'pass', 'param differs')\n"
    )
    text = "both failing cells have world_size=2; no passing cell has"
    session(source).stdout.fnmatch_lines(["2 of 6 cells failed", text])


def test_quiet_shows_failures_only(session):
    """With -q there is no grid and no count, but what failed and why."""
    found = session(MATRIX, "-q")
    found.stdout.fnmatch_lines(["=* precision matrix =*", *SECTION[9:13]], consecutive=True)
    found.stdout.no_fnmatch_line("*world_size  1 2*")
    found.stdout.no_fnmatch_line("8 cells in*")


def test_quiet_is_silent_without_failures(session):
    """With -q there is nothing to say of cells that pass."""
    found = session(HEAD + "@cells(p=[1, 2])\ndef test_it(axes, check): check()\n", "-q")
    found.assert_outcomes(passed=2)
    found.stdout.no_fnmatch_line("*precision matrix*")


def test_nothing_without_a_cell(session):
    """A session without a matrix has no section."""
    found = session("def test_it(): pass")
    found.stdout.no_fnmatch_line("*precision*=*")


def test_colour(session):
    """With markup the marks have the colours of their outcomes, neighbours in one."""
    found = session(MATRIX, "--color=yes")
    found.stdout.fnmatch_lines(
        [
            "  bf16            \x1b[[]32m. .   \x1b[[]0m\x1b[[]31mF F\x1b[[]0m",
            "8 cells in *: \x1b[[]32m4 passed (.)\x1b[[]0m, \x1b[[]31m4 failed (F)\x1b[[]0m",
        ]
    )


@pytest.mark.parametrize(
    "width", [60, *(pytest.param(width, marks=pytest.mark.nightly) for width in (100, 200))]
)
def test_the_section_keeps_to_the_width(session, monkeypatch, width):
    """Only what is copied whole, such as the id of a test, may be longer than a line."""
    monkeypatch.setenv("COLUMNS", str(width))
    source = MATRIX.replace("world_size=[1, 2]", "world_size=[1, 2, 3, 4, 8], seed=[1, 2, 3, 4]")
    found = session(source.replace("differ", "differ, and so on" * 9))
    section = found.stdout.str().partition(f" {terminal.TITLE} =")[2].partition("short test")[0]
    assert "40 of 80 cells failed" in section
    lines = section.splitlines()[1:]
    assert [line for line in lines if len(line) > width and "::" not in line] == []


EXPECTED = (
    HEAD
    + """
@pytest.mark.xfail(reason="no master weights", strict=True)
@cells(primary_weight=["bf16", "fp32"])
def test_expected(axes, check):
    if axes["primary_weight"] == "bf16":
        check("fail", "param differs")
    check()

@cells(world_size=[1, 2, 3])
def test_skip(axes, check):
    if axes["world_size"] > 1:
        pytest.skip(f"needs more ranks")
    check()

@pytest.fixture
def broken(): raise OSError("no disk")

@cells(world_size=[1])
def test_broken(axes, check, broken): pass

@cells(world_size=[1])
def test_caught(axes, check):
    with pytest.raises(AssertionError):
        check("vacuous", "nothing was compared")
"""
)


@pytest.mark.parametrize("mode", [(), pytest.param(WITH_WORKERS, marks=pytest.mark.nightly)])
def test_what_pytest_expects(session, mode):
    """Expected failures are no failures, unexpected passes are, and reasons are folded."""
    found = session(EXPECTED, "--folder=report", *mode)
    found.assert_outcomes(passed=2, failed=1, xfailed=1, skipped=2, errors=1)
    found.stdout.fnmatch_lines(
        [
            "test_it.py::test_expected",
            "  primary_weight  bf16  fp32",
            "                  x     F",
            "test_it.py::test_broken  E",
            "  s 2x needs more ranks",
            "    test_it.py::test_skip[[]2] and 1 more",
            "  x no master weights",
            "2 of 7 cells failed",
            "  F [[]XPASS(strict)[]] no master weights",
            "  E OSError: no disk",
            "7 cells in *: 1 passed (.), 2 skipped (s), 2 xfailed (x), 1 failed (F), 1 error (E)",
            "pytest counts 1 of the x as passed: their tests expected a failure",
        ]
    )


def test_rerun_counts_once(session):
    """A test that runs twice is one cell, which ended as its last run did."""
    source = HEAD + (
        "from _pytest.runner import runtestprotocol\n"
        "@cells(world_size=[1, 2])\n"
        "def test_flaky(axes, check, request):\n"
        "    request.node.runs = getattr(request.node, 'runs', 0) + 1\n"
        "    check('fail' if request.node.runs == 1 else 'pass', 'flaky')\n"
    )
    rerun = (
        "from _pytest.runner import runtestprotocol\n"
        "def pytest_runtest_protocol(item, nextitem):\n"
        "    for _ in range(2):\n"
        "        runtestprotocol(item, nextitem=nextitem, log=True)\n"
        "    return True\n"
    )
    Path("conftest.py").write_text(rerun)
    found = session(source, "--folder=report")
    found.stdout.fnmatch_lines(["2 cells in *: 2 passed (.)"])
    entries = read_report("report/report.json")["cells"]
    assert [entry["outcome"] for entry in entries] == ["pass", "pass"]


def test_crashed_worker(session):
    """A cell that takes its worker along is an error at its place in the grid."""
    source = HEAD + (
        "import os\n"
        "@cells(world_size=[1, 2])\n"
        "def test_crash(axes, check):\n"
        "    if axes['world_size'] == 2: os._exit(9)\n"
        "    check()\n"
    )
    found = session(source, "-n", "1", "--folder=report")
    found.stdout.fnmatch_lines(
        ["  world_size  1  2", "              .  E", "  E worker 'gw0' crashed while running *"]
    )
    entries = read_report("report/report.json")["cells"]
    assert sorted(entry["outcome"] for entry in entries) == ["error", "pass"]


def test_unwritable_folder_is_a_usage_error(session):
    """The session does not start when its report could not be written."""
    Path("taken").touch()
    found = session(MATRIX, "--folder=taken")
    assert found.ret == pytest.ExitCode.USAGE_ERROR
    found.stderr.fnmatch_lines(["ERROR: *--precision-report=taken (Not a directory)*"])


def test_interrupt_writes_the_report(session):
    """After an interrupt the file has every cell that ended before, and says that it is not all."""
    source = HEAD + (
        "@cells(w=list(range(30)))\n"
        "def test_it(axes, check):\n"
        "    if axes['w'] == 29: raise KeyboardInterrupt\n"
        "    check()\n"
    )
    session(source, "--folder=report")
    found = read_report("report/report.json")
    assert (found["finished"], len(found["cells"])) == (False, 29)


@pytest.mark.parametrize("mode", [(), WITH_WORKERS])
def test_junit_properties(matrix, mode):
    """The properties of a cell are in pytest's JUnit file, also with workers."""
    matrix(*mode)
    (case,) = ElementTree.parse("junit.xml").iterfind(".//*[@name='test_experts[bf16-bf16-2-0]']")
    found = {p.get("name"): p.get("value") for p in case.iterfind("properties/property")}
    assert found["precision.outcome"] == "fail"
    assert found["precision.axis.primary_weight"] == "bf16"
    assert found["precision.divergence.kind"] == "param"


@pytest.mark.parametrize("mode", [(), WITH_WORKERS, ("-v",)])
def test_progress_has_lines_of_its_own(matrix, mode):
    """Between the dots, and between the lines of -v, never on the same line."""
    found = matrix(*mode)
    lines = [line for line in found.outlines if "precision: " in line]
    assert len(lines) == 7
    assert lines[0].startswith("precision: 1 of 8 cells, ")
    assert all(line.startswith("precision: ") and line.endswith(" left") for line in lines)


def test_the_pace_is_that_of_cells(session):
    """Tests that are no cells, and run before them, say nothing of the time that cells take."""
    Path("conftest.py").write_text(PATIENT)
    source = HEAD + (
        "import time\n"
        "def test_first(): time.sleep(2)\n"
        "@cells(seed=[1, 2])\n"
        "def test_it(axes, check): check()\n"
    )
    session(source).stdout.fnmatch_lines(["precision: 1 of ? cells, 0 failed, about 0.? s left"])


def test_quiet_has_no_progress(session):
    """With -q there are no progress lines."""
    Path("conftest.py").write_text(PATIENT)
    session(MATRIX, "-q").stdout.no_fnmatch_line("*precision: *")


def test_long_grids_leave_out_what_passes(session, monkeypatch):
    """Where the grids would fill screens, a test whose cells all pass is one line."""
    monkeypatch.setattr(terminal, "MAX_LINES", 5)
    source = MATRIX + "\n@cells(world_size=[1, 2, 3])\ndef test_fine(axes, check): check()\n"
    found = session(source)
    found.stdout.fnmatch_lines([*SECTION[1:8], "test_it.py::test_fine: 3 cells, all passed"])


def test_many_reasons_are_cut_unless_verbose(session, monkeypatch):
    """Only the most frequent reasons are shown, and -v shows all."""
    monkeypatch.setattr(terminal, "MAX_REASONS", 2)
    source = HEAD + (
        "@cells(seed=[1, 2, 3, 4])\n"
        "def test_it(axes, check): check('error', f'rank {max(axes[\"seed\"], 2)} died')\n"
    )
    lines = ["4 of 4 cells failed, none passed", "  E 2x rank 2 died", "    *", "  E rank 3 died"]
    session(source).stdout.fnmatch_lines([*lines, "    *", "  and 1 more; -v shows all"])
    session(source, "-v").stdout.fnmatch_lines([*lines, "    *", "  E rank 4 died"])


def test_lost_report_is_told(session):
    """A report that could not be written to the end is said, even with -q."""
    source = HEAD + (
        "import shutil\n"
        "@cells(seed=[1])\n"
        "def test_it(axes, check): check(); shutil.rmtree('report')\n"
    )
    found = session(source, "--folder=report", "-q")
    found.stdout.fnmatch_lines(["precision: report/report.json could not be written: No such*"])


MANY = (
    HEAD
    + """
@cells(seed=[*range(25)])
def test_many(axes, check):
    check("fail", "param differs at step 1")

def test_other():
    assert 1 == 2
"""
)


def test_failures_with_one_cause_are_short(session) -> None:
    """The first is shown whole, the others name it; pytest's own failures stay as they are."""
    found = session(MANY)
    found.assert_outcomes(failed=26)
    found.stdout.fnmatch_lines(["E * param differs at step 1", "like test_many[[]0[]] (-v: whole)"])
    text = found.stdout.str()
    assert found.outlines.count("like test_many[0] (-v: whole)") == 24
    assert "assert 1 == 2" in text
    assert len(text) < 10_000


def test_a_failure_with_other_figures_says_them(session) -> None:
    """Else a run that is nearly right looks like one in which a mend had no effect."""
    source = HEAD + (
        "@cells(seed=[1, 2, 3])\n"
        "def test_it(axes, check): check('fail', f'loss is 0.{min(axes[\"seed\"], 2)}, not 0.5')\n"
    )
    lines = session(source).outlines
    assert [line for line in lines if line.startswith("like ")] == [
        "like test_it[1] (-v: whole), but loss is 0.2, not 0.5",
    ] * 2


def test_v_shows_every_failure_whole(session) -> None:
    """As do JUnit files, whose readers look at one test."""
    found = session(MANY, "-v", "--junit-xml=junit.xml")
    assert "(-v: whole)" not in found.stdout.str()
    found = session(MANY, "--junit-xml=junit.xml")
    assert "(-v: whole)" in found.stdout.str()
    failures = ElementTree.parse("junit.xml").getroot().iter("failure")
    assert all(failure.text for failure in failures)
    assert "whole" not in Path("junit.xml").read_text()


@pytest.mark.parametrize("mode", [(), pytest.param(("-n", "1"), marks=pytest.mark.nightly)])
def test_the_culprit_stands_below_its_reason(session, mode):
    """Wrapped at blanks as the rest, and as data in report.json, also of a worker's."""
    found = session(
        HEAD
        + "from made_up import culprit\n"
        + "@cells(w=[1])\n"
        + "def test_it(axes, check):\n"
        + '    check("fail", "param differs", {"culprit": culprit()})\n',
        *mode,
        "--folder=report",
    )
    found.stdout.fnmatch_lines(
        [
            "  F param differs",
            "    first wrong value: aten.mul.Tensor in clip_grad_norm_, called at",
            "      train.py:69: the reference multiplied by 0.3 here, the candidate by 100.0",
            "    test_it.py::test_it[[]1]",
        ]
    )
    (cell,) = read_report("report/report.json")["cells"]
    assert Culprit.of(cell["culprit"]) == culprit()


BRIEF = (
    HEAD
    + """
@cells(seed=[0])
def test_one(axes, check):
    brief = ["param differs", "  " + "many words " * 20, "", "  Repeat with: pytest " + "x" * 90]
    check("fail", "param differs" + chr(10) + "and " + "much more", {"brief": brief})
"""
)


@pytest.mark.parametrize(
    "mode", [(), pytest.param(("--tb=short", "-rA", "-n", "1"), marks=pytest.mark.nightly)]
)
def test_a_failure_is_shown_at_a_look(session, mode, monkeypatch) -> None:
    """Its few lines in place of the message, wrapped, but for a command, which is copied whole."""
    monkeypatch.setenv("COLUMNS", "80")
    found = session(BRIEF, *mode)
    message = [line for line in found.outlines if line.startswith("E ")]
    assert [len(line) for line in message if len(line) > 80] == [len(message[-1])]
    assert message[-1].endswith("  Repeat with: pytest " + "x" * 90)
    assert sum("many words" in line for line in message) == 3
    assert not any("much more" in line for line in message)


@pytest.mark.parametrize("words", ["--tb=native", "-v"])
def test_a_message_is_whole(session, words) -> None:
    """With `-v`, and in a style that has no place for other lines."""
    assert "and much more" in session(BRIEF, words).stdout.str()


def test_a_cell_that_was_run_again_is_told(session) -> None:
    """Below the counts, since its mark is that of a cell that passed at once."""
    flaky = (
        HEAD
        + """
RUNS = []

@cells(seed=[0])
def test_one(axes, check):
    RUNS.append(1)
    check(*(["fail", "param differs"] if len(RUNS) == 1 else []))
"""
    )
    found = session(flaky, "--reruns", "1", "--junitxml=junit.xml")
    told = "test_it.py::test_one[[]0[]] was run 1 more time after a failure, and then passed"
    found.stdout.fnmatch_lines(["*1 passed (.)", told])
