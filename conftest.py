"""Root conftest: the tests of the plugin run pytest inside pytest.

Where the package is not installed, its entry point is missing, and the plugin is loaded here, also
for the inner runs. torch is not imported here: a test module whose in-process suites import torch
imports it itself, because pytester forgets what was imported within, and torch cannot be imported
twice.

Property tests draw the same examples in every run, so that a red run is the change's doing;
`pytest --hypothesis-profile=new` draws others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import Scheduling

pytest_plugins = ["pytester"]

SLOWEST_LAST = (
    "parity",
    "optim",
    "formats",
    "trace",
    "report",
    "workloads",
    "recorders",
    "check",
    "plugin",
    "ranks",
    "modes",
    "faults",
    "layouts",
    "regressions",
)
"""Folders of tests, in the order in which they run; what stands elsewhere runs first."""

INSTALLED = "precision"
"""Name of the plugin where its entry point loads it."""

# On a busy machine, time says nothing of a test. Examples may share a
# fixture's folder. A list in a test's own settings would take the place of this one.
settings.register_profile(
    "new",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("reproducible", settings.get_profile("new"), derandomize=True)
settings.load_profile("reproducible")


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    if not pluginmanager.has_plugin(INSTALLED):
        pluginmanager.import_plugin("pytest_precision.plugin.hooks")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the fast folders first."""
    tests = config.rootpath / "tests"

    @cache
    def turn(file: Path) -> int:
        inside = file.relative_to(tests).parts if file.is_relative_to(tests) else ()
        return SLOWEST_LAST.index(inside[0]) if inside[:1] and inside[0] in SLOWEST_LAST else -1

    items.sort(key=lambda item: turn(item.path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Have tests that share servers run on one worker."""
    if config.getoption("dist") != "loadfile":
        return None
    from one_worker import ByServer  # it needs xdist, without which nobody asks

    return ByServer(config, log)


@pytest.fixture(scope="session", autouse=True)
def _without_hypothesis() -> Iterator[None]:
    """Have sessions that tests start leave out a plugin whose import takes a second of each."""
    options = os.environ.get("PYTEST_ADDOPTS", "")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTEST_ADDOPTS", f"{options} -p no:hypothesispytest".strip())
        yield


@pytest.fixture
def pytester(
    pytester: pytest.Pytester, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> pytest.Pytester:
    """The fixture of that name with the plugin loaded and no option of it set from outside."""
    for variable in os.environ:
        if variable.startswith("PRECISION_"):
            monkeypatch.delenv(variable)
    # In an inner run, the one would leave a thread and a socket, unless `-p rerunfailures` asks for
    # it; the other would import hypothesis to report of tests that an inner run does not have.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:rerunfailures -p no:hypothesispytest")
    if not pytestconfig.pluginmanager.has_plugin(INSTALLED):
        monkeypatch.setenv("PYTEST_PLUGINS", "pytest_precision.plugin.hooks")
        monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    return pytester
