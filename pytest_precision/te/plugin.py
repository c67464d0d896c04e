"""A pytest plugin that runs a project's own tests over the Transformer Engine stand-in.

It is loaded by `pytest -p pytest_precision.te.plugin`. The tests then run in pytest's process, in
which torch calls the CPU `cuda` from here on. Without `-p` nothing imports this module.
"""

from __future__ import annotations

import pytest

from pytest_precision import te


def pytest_load_initial_conftests() -> None:
    """Install the Transformer Engine stand-in before pytest imports any module of the project.

    Raises:
        pytest.UsageError: it cannot run here; the message says why.
    """
    try:
        te.install()
    except RuntimeError as error:
        raise pytest.UsageError(f"-p {__name__}: {error}") from None
    from pytest_precision.te import marks

    marks.pass_on()


def pytest_report_header() -> str:
    """Return the line of pytest's header that names the Transformer Engine stand-in."""
    return f"Transformer Engine: {te.running()}, over a stand-in for its kernels"
