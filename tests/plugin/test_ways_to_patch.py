"""Each way to change what code computes in pytest's process: refused, carried over, or listed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from written import read_report

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

SUITE = Path(__file__).parents[2] / "fixtures" / "patched"

SCOPE = """
import net
import pytest
from check import check


@pytest.fixture(scope="{scope}", autouse=True)
def automatic():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(net.CONFIG, "attribute", 3.0)
        yield


class TestScope:
    @pytest.mark.precision_matrix(precision=["fp32"], sequence=["train1"], way=["{scope} fixture"])
    def test_scope(self, parity):
        check(parity)
"""

SCOPES = ("function", "class", "module", "package", "session")

DOCUMENTED = {
    *("by hand config", "by hand namespace", "by hand slots", "by hand table", "by hand numbers"),
    *("by hand tensor", "by hand defaults", "by hand keywords", "by hand code", "by hand closure"),
    *("by hand inner", "by hand enum", "hook hook"),
}
"""What a test body assigns by hand inside an object, and what a hook assigns before collection has
ended: the only ones that pass though ranks have another value, see `docs/reference/ranks.md`."""

CARRIED = {
    *("setenv variable", "delenv given", "mock variable", "mock all variables variable"),
    *("by hand variable", "chdir directory", "by hand directory", "syspath_prepend path"),
    *("setattr path", "import conftest", "import in_conftest", "import test_module"),
    *("import plugin", "import command_line", "import inner_conftest"),
}

NOTHING = {"undone"}
"""Where nothing is changed any more."""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str, str]]:
    """Outcome, gate and reason of the check of each way."""
    folder = tmp_path_factory.mktemp("ways") / "suite"
    shutil.copytree(SUITE, folder)
    for number, scope in enumerate(SCOPES):
        (folder / f"test_x{number}_{scope}.py").write_text(SCOPE.replace("{scope}", scope))
    options = ["--precision-matrix", "--precision-device=cpu", "--precision-report=report"]
    options += ["-oprecision_lines=off", "-p", "command_line_plugin", "-p", "no:cacheprovider"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-q", "--tb=no"],
        cwd=folder,
        env=os.environ | {"NET_GIVEN": "1", "PYTHONPATH": str(folder)},
        check=False,
    )
    cells = read_report(folder / "report" / "report.json")["cells"]
    return {
        cell["axes"]["way"]: (cell["outcome"], cell.get("gate", ""), cell["reason"])
        for cell in cells
    }


def test_at_least_forty_five_ways_are_tried(outcomes: dict[str, tuple[str, str, str]]) -> None:
    """None of those that are listed here is missing, and most are refused."""
    assert outcomes.keys() >= DOCUMENTED | CARRIED | NOTHING
    refused = [way for way, (_, gate, _) in outcomes.items() if gate == "unpatched"]
    assert len(refused) >= 45


def test_each_way_is_refused_carried_over_or_documented(
    outcomes: dict[str, tuple[str, str, str]],
) -> None:
    """Ranks have a changed value, or the check is an error that names it, but for those listed."""
    passed = {way for way, (outcome, _, _) in outcomes.items() if outcome == "pass"}
    assert passed == DOCUMENTED | NOTHING
    carried = {way for way, (outcome, gate, _) in outcomes.items() if gate == "agreement"}
    assert carried == CARRIED
    refused = {way for way, (outcome, gate, _) in outcomes.items() if gate == "unpatched"}
    assert refused == outcomes.keys() - DOCUMENTED - NOTHING - CARRIED
