"""ci/te: what is written of tests of others, also if they are ended early."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from checks import ROOT

SUITE = """
    import pytest

    @pytest.mark.parametrize("n", range(20))
    def test_numbers(n):
        assert n != 10, "ten"

    @pytest.fixture
    def broken():
        raise ValueError("no set-up")

    def test_setup(broken):
        pass

    def test_skipped():
        pytest.skip("not here")
"""
PAGE = """above

<!-- ci/te: te begins -->
<!-- ci/te: te ends -->

between

<!-- ci/te: megatron begins -->
<!-- ci/te: megatron ends -->

below
"""
BENCH = ROOT / "ci" / "bench"


@pytest.fixture
def te_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The module that writes the page, and a page of its own."""
    monkeypatch.syspath_prepend(BENCH)
    import te_page as module

    page = tmp_path / "page.md"
    page.write_text(PAGE)
    monkeypatch.setattr(module, "PAGE", page)
    return module


@pytest.fixture
def te_suites(monkeypatch: pytest.MonkeyPatch, te_page: ModuleType) -> ModuleType:
    import te_suites as module

    return module


def outcomes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, every: int
) -> list[dict[str, object]]:
    """Run the suite with the plugin, and return the lines that it has written."""
    pytester.makepyfile(SUITE)
    monkeypatch.setenv("PYTHONPATH", str(BENCH))
    monkeypatch.setenv("PRECISION_TE_OUTCOMES", str(pytester.path))
    monkeypatch.setenv("PRECISION_TE_EVERY", str(every))
    monkeypatch.setenv("RANK", "1")
    pytester.runpytest_subprocess("-p", "te_outcomes", "-p", "no:cacheprovider")
    text = (pytester.path / "rank1").read_text()
    return [json.loads(line) for line in text.splitlines()]


def line(outcome: str, why: str = "", test: str = "one.py::a") -> dict[str, object]:
    return {"test": test, "outcome": outcome, "why": why}


@pytest.mark.slow
def test_each_outcome_is_written_with_its_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, te_page: ModuleType
) -> None:
    """A failure of a set-up counts, and a row has the number of tests and the messages."""
    row = te_page.row(outcomes(pytester, monkeypatch, 1))
    assert row[:4] == ["19", "2", "1", "22"]
    assert sorted(row[4].split("; ")) == [
        "unexplained: AssertionError: ten (1)",
        "unexplained: ValueError: no set-up (1)",
    ]


@pytest.mark.slow
def test_one_of_ten_is_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, te_page: ModuleType
) -> None:
    """The row says that it is a part."""
    row = te_page.row(outcomes(pytester, monkeypatch, 10), every=10)
    assert row == ["2", "0", "0", "2, one of 10", ""]


def test_a_part_has_each_value_of_each_parameter(
    te_page: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tenth test would have one value of a parameter with two, which varies fastest."""
    import te_outcomes

    monkeypatch.setenv("PRECISION_TE_EVERY", "10")
    items: list[Any] = [*range(1000)]
    te_outcomes.pytest_collection_modifyitems(items)
    assert len(items) == 100
    assert {n % 2 for n in items} == {0, 1}
    assert {n % 5 for n in items} == {0, 1, 2, 3, 4}


def test_a_run_that_was_ended_says_where(te_page: ModuleType) -> None:
    """So it is not taken for one that passed; a file without a test was not run."""
    assert te_page.row([{"collected": 5}, line("passed")]) == [
        "1",
        "0",
        "0",
        "5, ended after 1",
        "",
    ]
    assert te_page.row([{"collected": 0}])[0] == "not run"


@pytest.mark.parametrize(
    ("ranks", "counts"),
    [
        (("passed", "failed"), ["0", "1", "0"]),
        (("failed", "passed"), ["0", "1", "0"]),
        (("skipped", "passed"), ["1", "0", "0"]),
        (("skipped", "skipped"), ["0", "0", "1"]),
    ],
)
def test_a_test_fails_on_all_ranks_if_it_does_on_one(
    te_page: ModuleType, ranks: tuple[str, str], counts: list[str]
) -> None:
    """It is one test, on however many ranks it runs."""
    lines = [{"collected": 1}, *(line(outcome) for outcome in ranks)]
    assert te_page.row(lines)[:3] == counts


@pytest.mark.parametrize(
    ("test", "message", "said"),
    [
        ("t.py::a", "RuntimeError: Tried to instantiate dummy base class CUDAGraph", "CUDA graphs"),
        ("t.py::a", "RuntimeError: world_size (2) is not divisible by 8", "needs more ranks"),
        ("t.py::a", "AssertionError: Tensor-likes are not equal!", "unexplained: AssertionError"),
        ("t.py::a", "at 0x7f and /home/me/file: a|b\nmore", "unexplained: at  and file: a/b (1)"),
    ],
)
def test_a_failure_has_its_cause_of_one_list(
    te_page: ModuleType, test: str, message: str, said: str
) -> None:
    """A message that belongs to tests of one file explains no others, whose row is not in order."""
    row = te_page.row([{"collected": 1}, line("failed", message, test)])
    assert said in row[4]
    assert te_page.is_in_order(row) == ("unexplained" not in said)


def test_rows_that_are_not_run_anew_stay(te_page: ModuleType) -> None:
    """The page keeps what stands around a table, and the table of the other project."""
    first = {"one.py": ["1", "0", "0", "1", ""]}
    te_page.write_rows("te", "Measured.", first)
    te_page.write_rows("megatron", "Measured too.", {"m.py": ["2", "0", "0", "2", ""]})
    kept = te_page.read_rows("te") | {"two.py": ["0", "3", "0", "3", "a reason (3)"]}
    te_page.write_rows("te", "Measured again.", kept)
    assert te_page.read_rows("te") == kept
    assert te_page.read_rows("megatron") == {"m.py": ["2", "0", "0", "2", ""]}
    text = te_page.PAGE.read_text()
    assert [text.startswith("above\n"), text.endswith("below\n")] == [True, True]
    assert "\nbetween\n" in text
    assert "Measured again." in text
    assert [file.name for file in te_page.PAGE.parent.iterdir()] == ["page.md"]


def test_each_project_has_a_table_in_the_page(te_suites: ModuleType) -> None:
    """A row of it is of a file that is run, and of the part that is run."""
    page = ROOT / "docs" / "evidence" / "transformer-engine.md"
    sys.modules["te_page"].PAGE = page  # type: ignore[attr-defined]
    for project in te_suites.PROJECTS:
        rows = sys.modules["te_page"].read_rows(project.option)
        assert rows, project.title
        assert rows.keys() <= {suite.name for suite in project.suites}, project.title
        parts = {name: row[3] for name, row in rows.items() if "one of" in row[3]}
        every = {suite.name: suite.every for suite in project.suites if suite.every > 1}
        assert parts.keys() == every.keys() & rows.keys(), project.title
        for name, part in parts.items():
            assert part.split(", ")[1] == f"one of {every[name]}", name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "expected --te DIR or --megatron DIR but got neither"),
        (
            ["--te", "{0}"],
            "expected --te to be a checkout of Transformer Engine but got {0}, which",
        ),
        (["--te", "{0}/none"], "but got {0}/none, which has no tests/pytorch"),
        (["--megatron", "{0}/old"], "with tests/unit_tests/test_fp8_utils.py but got {0}/old"),
        (["--megatron", "{0}/old", "test_none.py"], "but got test_none.py; name one of them"),
        (["--te", "{0}", "--limit", "soon"], "invalid int value: 'soon'"),
        (["--te", "{0}", "--every"], "unrecognized arguments: --every"),
    ],
)
def test_arguments_that_cannot_be_served_say_so(
    te_suites: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    """Before anything is run: which folder, file or option it is, and what to do."""
    (tmp_path / "old" / "tests" / "unit_tests").mkdir(parents=True)
    given = [argument.format(tmp_path) for argument in arguments]
    if "old" in message:
        given.append("test_fp8_utils.py")
    monkeypatch.setattr(sys, "argv", ["ci/te", *given])
    with pytest.raises(SystemExit, match="2"):
        te_suites.main()
    assert message.format(tmp_path) in capsys.readouterr().err


@pytest.mark.slow
def test_a_checkout_within_a_project_is_run_by_itself(
    te_suites: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The options and the conftest.py of what it lies in, as in a workflow, are not its own."""
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\nrequired_plugins='none'\n")
    (tmp_path / "conftest.py").write_text("raise AssertionError")
    tests = tmp_path / "te" / "tests" / "pytorch"
    tests.mkdir(parents=True)
    (tmp_path / "te" / "pyproject.toml").touch()
    (tests / "test_recipe.py").write_text("def test_one(): pass")
    assert outcome_of(te_suites, monkeypatch, tmp_path / "te") == ["passed"]


@pytest.mark.slow
def test_what_is_tested_is_the_installed_package(
    te_suites: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout of Transformer Engine gives its tests alone, and Megatron-core's itself too."""
    tests = tmp_path / "tests" / "pytorch"
    tests.mkdir(parents=True)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "of_the_checkout.py").touch()
    (tests / "test_recipe.py").write_text("def test_one(): import of_the_checkout")
    assert outcome_of(te_suites, monkeypatch, tmp_path) == ["failed"]
    imported = dataclasses.replace(te_suites.TE, imported=True)
    monkeypatch.setattr(te_suites, "TE", imported)
    assert outcome_of(te_suites, monkeypatch, tmp_path) == ["passed"]
    assert te_suites.MEGATRON.imported


def outcome_of(
    te_suites: ModuleType, monkeypatch: pytest.MonkeyPatch, checkout: Path
) -> list[object]:
    """Run the only test of a checkout without the stand-in, and return what became of it."""
    monkeypatch.setattr(te_suites, "PLUGINS", ("-p", "te_outcomes"))
    suite = te_suites.Suite("test_recipe.py")
    lines, _ = te_suites.run(te_suites.TE, checkout, suite, every=1, limit=100)
    return [line["outcome"] for line in lines if "test" in line]


@pytest.mark.slow
def test_an_interrupted_run_leaves_the_page_and_no_process(tmp_path: Path) -> None:
    """The row of the file that was running is as it was, and the ranks that ran it have ended."""
    tests = tmp_path / "te" / "tests" / "pytorch"
    tests.mkdir(parents=True)
    (tmp_path / "te" / "pyproject.toml").touch()
    noted = tmp_path / "ranks"
    noted.mkdir()
    (tests / "test_recipe.py").write_text(
        f"import os, pathlib, time\n(pathlib.Path({str(noted)!r}) / str(os.getpid())).touch()\n"
        "time.sleep(600)\n"
    )
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    program = (
        "import dataclasses, sys, pathlib, te_page, te_suites\n"
        f"te_page.PAGE = pathlib.Path({str(page)!r})\n"
        "te_suites.PLUGINS = ()\n"
        "suites = (te_suites.Suite('test_recipe.py', ranks=2),)\n"
        "te_suites.PROJECTS = (dataclasses.replace(te_suites.TE, suites=suites),)\n"
        f"sys.argv = ['ci/te', '--te', {str(tmp_path / 'te')!r}]\n"
        "sys.exit(te_suites.main())\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(BENCH)}
    )
    while len(list(noted.iterdir())) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert page.read_text() == PAGE
    for rank in noted.iterdir():
        with pytest.raises(ProcessLookupError):
            os.kill(int(rank.name), 0)
