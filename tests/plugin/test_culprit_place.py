"""Where a session says that a wrong value was made: in files named as node ids name them."""

from __future__ import annotations

import in_this_process  # noqa: F401
import pytest
from written import read_report

SUITE = """
import pytest
import torch
from pytest_precision import script


@script
def trainer(cell, record):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with record():
        while True:
            (model(torch.ones(2, 3)) * cell.factor).sum().backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.precision_matrix(sequence=["train1"], factor=[2.0])
def test_it(cell, parity):
    parity.check(trainer, trainer, reference_cell=cell.replace(factor=3.0))
"""


def expect_a_look(found: pytest.RunResult) -> None:
    """Expect what shows a failure at a glance, within 80 columns but for a command."""
    message = [line for line in found.outlines if line.startswith("E ")]
    assert message[0].startswith("E   loss differs at step 1 after ")
    assert any(line.startswith("E     first wrong value: ") for line in message)
    assert any(line.split()[1:4] == ["kind", "dtype", "init"] for line in message)
    assert "Repeat with: " in message[-2]
    assert message[-1].startswith("E     -v shows ")
    assert [line for line in message if len(line) > 80 and "Repeat with: " not in line] == []
    short = found.stdout.str().partition("short test summary info")[2]
    assert " - loss differs" in short
    assert "ParityError" not in short


def test_files_are_named_from_the_root(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where pytest is called in a folder of the project: an annotation finds the file."""
    pytester.makeini("[pytest]")
    folder = pytester.mkdir("inner")
    folder.joinpath("test_it.py").write_text(SUITE)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "80")
    words = ("--precision-matrix", "-p", "no:randomly", "--junitxml=junit.xml")
    found = pytester.runpytest_inprocess(*words, "--precision-report=report")
    found.assert_outcomes(failed=1)
    expect_a_look(found)
    assert "Mismatched elements: " in (folder / "junit.xml").read_text()
    (cell,) = read_report(folder / "report" / "report.json")["cells"]
    assert cell["nodeid"].startswith("inner/test_it.py::")
    assert (cell["culprit"]["file"], cell["culprit"]["line"]) == ("inner/test_it.py", 13)
    assert cell["culprit"]["kind"] == "constant"
    page = (folder / "report" / "report.html").read_text()
    assert str(pytester.path) not in page
