"""ci/te: what is written of tests of others, also if they are ended early."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

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


@pytest.fixture
def te_suites(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "ci" / "bench")
    import te_suites as module

    return module


def outcomes(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, every: int
) -> list[dict[str, object]]:
    """Run the suite with the plugin, and return the lines that it has written."""
    pytester.makepyfile(SUITE)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "ci" / "bench"))
    monkeypatch.setenv("PRECISION_TE_OUTCOMES", str(pytester.path / "outcomes"))
    monkeypatch.setenv("PRECISION_TE_EVERY", str(every))
    pytester.runpytest_subprocess("-p", "te_outcomes", "-p", "no:cacheprovider")
    text = (pytester.path / "outcomes").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_each_outcome_is_written_with_its_reason(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, te_suites: ModuleType
) -> None:
    """A failure of a set-up counts, and a row has the number of tests and the messages."""
    lines = outcomes(pytester, monkeypatch, 1)
    row = te_suites.row(lines, te_suites.Suite("one.py"), whole=False)
    assert row[:4] == ["19", "2", "1", "22"]
    assert sorted(row[4].split("; ")) == ["AssertionError: ten (1)", "ValueError: no set-up (1)"]


@pytest.mark.slow
def test_one_of_ten_is_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, te_suites: ModuleType
) -> None:
    """The row says that it is a part."""
    lines = outcomes(pytester, monkeypatch, 10)
    row = te_suites.row(lines, te_suites.Suite("one.py", every=10), whole=False)
    assert row == ["1", "2", "0", "3, one of 10", row[4]]


def test_a_run_that_was_ended_says_where(te_suites: ModuleType) -> None:
    """So it is not taken for one that passed; a file without a test was not run."""
    lines = [{"collected": 5}, {"test": "one.py::a", "outcome": "passed", "why": ""}]
    suite = te_suites.Suite("one.py")
    assert te_suites.row(lines, suite, whole=True) == ["1", "0", "0", "5, ended after 1", ""]
    assert te_suites.row([{"collected": 0}], suite, whole=True)[0] == "not run"


def test_rows_that_are_not_run_anew_stay(
    te_suites: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page keeps what stands around the table."""
    page = tmp_path / "page.md"
    page.write_text(f"above\n\n{te_suites.BEGIN}\n{te_suites.END}\n\nbelow\n")
    monkeypatch.setattr(te_suites, "PAGE", page)
    monkeypatch.setattr(te_suites, "version", lambda name: "1.0")
    names = [suite.file for suite in te_suites.SUITES[:2]]
    te_suites.write_rows({names[0]: ["1", "0", "0", "1", ""]})
    kept = te_suites.read_rows()
    kept[names[1]] = ["0", "3", "0", "3", "no: a reason (3)"]
    te_suites.write_rows(kept)
    assert te_suites.read_rows() == kept
    assert page.read_text().startswith("above\n")
    assert page.read_text().endswith("below\n")


def test_a_checkout_is_asked_for(
    te_suites: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without one there is nothing to run."""
    monkeypatch.setattr(sys, "argv", ["ci/te"])
    with pytest.raises(SystemExit, match="2"):
        te_suites.main()
    assert "the following arguments are required: --te" in capsys.readouterr().err
