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


def test_files_are_named_from_the_root(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where pytest is called in a folder of the project: an annotation finds the file."""
    pytester.makeini("[pytest]")
    folder = pytester.mkdir("inner")
    folder.joinpath("test_it.py").write_text(SUITE)
    monkeypatch.chdir(folder)
    found = pytester.runpytest_inprocess(
        "--precision-matrix", "--precision-report=report", "-p", "no:randomly"
    )
    found.assert_outcomes(failed=1)
    (cell,) = read_report(folder / "report" / "report.json")["cells"]
    assert cell["nodeid"].startswith("inner/test_it.py::")
    assert (cell["culprit"]["file"], cell["culprit"]["line"]) == ("inner/test_it.py", 13)
    assert cell["culprit"]["kind"] == "constant"
    page = (folder / "report" / "report.html").read_text()
    assert str(pytester.path) not in page
