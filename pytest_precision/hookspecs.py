"""The hooks that pytest-precision calls: a plugin implements them to add judgements and reporters.

They are found as all hooks of pytest are: in a `conftest.py`, in a module of `-p`, or in a package
with an entry point of `pytest11`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_precision.registered import ProbeSpec, ReporterSpec


@pytest.hookspec
def pytest_precision_probes(config: pytest.Config) -> ProbeSpec | Sequence[ProbeSpec] | None:
    """Return the judgements of a plugin: probes of runs, and gates and explanations of cells.

    It is called once in each process of a session that runs a cell, so also in each worker of
    xdist, when its tests are collected. Ranks do not call it: they are told which of its functions
    and classes they need, by import path, and import these.

    Args:
        config: pytest's configuration.
    """


@pytest.hookspec
def pytest_precision_reporters(
    config: pytest.Config,
) -> ReporterSpec | Sequence[ReporterSpec] | None:
    """Return reporters: what is written of all cells when the session ends.

    It is called in the process that writes report.json, which is xdist's controller, and rank 0 of
    a launch.

    Args:
        config: pytest's configuration.
    """
