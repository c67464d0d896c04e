"""Ask the plugins of a session what they register; see `hookspecs`.

pytest imports this module at every start: what a session without cells does not need is imported in
the functions.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

from pytest_precision import hookspecs
from pytest_precision.errors import expected_but_got

if TYPE_CHECKING:
    from pytest_precision.registered import ProbeSpec, Registered

BUNDLED = "pytest_precision.plugin.bundled"

REGISTERED = pytest.StashKey["Registered"]()


def add_hooks(plugins: pytest.PytestPluginManager) -> None:
    """Declare the hooks."""
    plugins.add_hookspecs(hookspecs)


def register_package(config: pytest.Config) -> None:
    """Register the plugin of what this package brings beside its core, as pytest does its own."""
    config.pluginmanager.register(import_module(BUNDLED), "precision-bundled")


def registered_by(config: pytest.Config) -> Registered:
    """Return the judgements of a session, which are asked for when one is first needed."""
    if REGISTERED not in config.stash:
        from pytest_precision.registered import Registered

        # pluggy calls the last plugin first.
        config.stash[REGISTERED] = Registered(
            lambda: config.hook.pytest_precision_probes(config=config)[::-1]
        )
    return config.stash[REGISTERED]


def refusals_of_plugins(config: pytest.Config) -> list[str]:
    """Return the errors in the judgements of a session, before any cell runs."""
    from pytest_precision.check.gate_order import ordered_gates
    from pytest_precision.parity.figures import DEFAULT_FIGURES
    from pytest_precision.parity.verdict import FACTS, FINDINGS
    from pytest_precision.recorders.rank_probes import rank_probes

    registered = registered_by(config)
    try:
        ordered_gates(registered.probes)
        expect_new_figures(registered.probes, {*FACTS, *FINDINGS, *DEFAULT_FIGURES})
        for field in ("engine", "loop"):
            rank_probes(registered, field)
    except (pytest.UsageError, TypeError) as error:
        return [str(error)]
    return []


def expect_new_figures(probes: Iterable[ProbeSpec], keys: Iterable[str]) -> None:
    """Raise if a judgement of another plugin has a figure under a name that is in use.

    Args:
        probes: the judgements.
        keys: what report.json has of a cell.

    Raises:
        pytest.UsageError: with the name.
    """
    from pytest_precision.registered import is_of_package

    used = {*keys}
    for probe in probes:
        for figure in probe.figures:
            if is_of_package(figure.function):
                continue
            if figure.name in used:
                expected = f"{probe} to have a figure under a name of its own"
                raise pytest.UsageError(expected_but_got(expected, repr(figure.name)))
            used.add(figure.name)
