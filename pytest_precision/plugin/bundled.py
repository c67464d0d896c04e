"""The plugin of what this package brings beside its core; it has the hooks that any plugin has.

pytest imports this module at every start: what few sessions need is imported in the hook.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_precision.options import SETTINGS
from pytest_precision.ranks.launch.launch import Launch

if TYPE_CHECKING:
    from pytest_precision.auditing.audit import Audit
    from pytest_precision.registered import ProbeSpec, ReporterSpec


# Last, so that those of other plugins come after them: pluggy calls the last plugin first.
@pytest.hookimpl(trylast=True)
def pytest_precision_probes() -> list[ProbeSpec]:
    """Return the judgements of the package."""
    from pytest_precision.probes import package_probes

    return package_probes()


@pytest.hookimpl(trylast=True)
def pytest_precision_reporters() -> list[ReporterSpec]:
    """Return the reporters of the package."""
    from pytest_precision.probes import package_reporters

    return package_reporters()


def pytest_configure(config: pytest.Config) -> None:
    """Register what the options of the session ask for."""
    settings = config.stash[SETTINGS]
    if settings.te == "cpu":
        from pytest_precision.check import te_support

        te_support.refuse_stand_in(settings)
    if settings.compares_in_time:
        from pytest_precision.probes.then import other_side

        other_side.open_other_side(config, settings)
    if settings.fuzz:
        from pytest_precision.plugin.fuzz import Fuzz

        config.pluginmanager.register(Fuzz.of(config), "precision-fuzz")
    if settings.baseline is not None and _reports(config):
        from pytest_precision.probes.baselines.baseline_summary import BaselineSummary

        summary = BaselineSummary.of(config, settings)
        config.pluginmanager.register(summary, "precision-baselines")


def _reports(config: pytest.Config) -> bool:
    """Return whether this process reports: no worker of xdist, and rank 0 of a launch."""
    if hasattr(config, "workerinput"):
        return False
    launch = Launch.of(os.environ)
    return launch is None or launch.rank == 0


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker which commit or installation its checks are compared with."""
    if node.config.stash[SETTINGS].compares_in_time:
        from pytest_precision.probes.then import other_side

        other_side.tell_worker(node)


@pytest.fixture
def precision_audit() -> Callable[..., Audit]:
    """Search a model and its optimizer for mistakes before training; fail the test on an error."""
    from pytest_precision.auditing.audit import checked

    return checked
