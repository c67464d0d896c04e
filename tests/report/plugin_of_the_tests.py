"""A plugin as small as can be that delegates to the report: `test_terminal.py` loads it.

A test `@cells(precision=[...], ...)` becomes one cell a point; its body calls `check(...)`.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from made_up import divergence, verdict

from pytest_precision.probes import package_reporters
from pytest_precision.report.provenance import environment
from pytest_precision.report.report_attributes import attach
from pytest_precision.report.session import SessionReport

VERDICTS = pytest.StashKey[list]()
TOTAL = pytest.StashKey[int]()


def cells(**axes):
    """Decorates a test that takes `axes`."""
    points = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
    ids = ["-".join(map(str, point.values())) for point in points]
    return pytest.mark.parametrize("axes", points, ids=ids)


@pytest.fixture
def check(request):
    """A made-up check: `check("fail", "param differs")` raises what `parity.check` would."""
    found = request.node.stash[VERDICTS] = []

    def check(outcome="pass", reason="", fields=None, **changes):
        axes = request.node.callspec.params["axes"]
        place = {"divergence": divergence(**changes)} if outcome == "fail" else {}
        name = request.node.callspec.id
        reason = reason and f"{name}: {reason}"
        own = {"nodeid": request.node.nodeid, "axes": axes} | place | (fields or {})
        brief = own.pop("brief", [])
        found.append(verdict(outcome, reason, **own) | ({"brief": brief} if brief else {}))
        if outcome not in ("pass", "skip"):
            error = AssertionError(reason)
            error.position = len(found) - 1
            error.brief = found[-1].get("brief", [])
            raise error

    return check


def pytest_addoption(parser):
    """The folder of report.json."""
    parser.addoption("--folder", type=Path)


def pytest_configure(config):
    """The report lives on the controller."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Delegate(config))


def pytest_collection_finish(session):
    """The number of cells, for the progress lines."""
    session.config.stash[TOTAL] = len(session.items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """The cell and its verdicts travel on the report of every phase."""
    report = yield
    if "axes" in item.fixturenames:
        error = None if call.excinfo is None else call.excinfo.value
        position = getattr(error, "position", None)
        attach(
            report,
            item,
            axes=item.callspec.params["axes"],
            verdicts=item.stash.get(VERDICTS, []),
            raised=[] if position is None else [position],
            number=item.callspec.indices["axes"],
            total=item.config.stash[TOTAL],
        )
        if brief := getattr(error, "brief", []):
            report.precision_brief = brief
    return report


class Delegate:
    """The hooks of the controller."""

    def __init__(self, config):
        folder = config.getoption("--folder")
        self.report = SessionReport(
            config, folder, environment(device="cpu", flags={}), lambda: [package_reporters()]
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self):
        """Begin the file."""
        self.report.start()

    def pytest_runtest_logreport(self, report):
        """Take a report."""
        self.report.add(report)

    def pytest_sessionfinish(self):
        """Write for the last time."""
        self.report.finish()

    def pytest_terminal_summary(self, terminalreporter):
        """Write the section."""
        self.report.summary(terminalreporter)
