"""A recorder that reads thousands of tensors is not interrupted by searches for cycles."""

from __future__ import annotations

import gc

import pytest

from pytest_precision.recorders.collector import collector_paused


@pytest.mark.parametrize("enabled", [True, False])
def test_the_collector_is_paused_and_then_as_it_was(enabled: bool) -> None:
    """A script may have turned it off itself, and an error inside changes nothing."""
    usual = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(RuntimeError, match="enabled=False"), collector_paused():
            raise RuntimeError(f"enabled={gc.isenabled()}")
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if usual else gc.disable)()
