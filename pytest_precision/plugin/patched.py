"""Have what tests patch noted from before the first `conftest.py`, where cells run."""

from __future__ import annotations

from contextlib import suppress

import pytest

from pytest_precision.options import cells_are_asked_for


def note_what_is_patched(early_config: pytest.Config) -> None:
    """Note each change by `monkeypatch` and `unittest.mock` from now on, if cells run."""
    with suppress(pytest.UsageError):  # `read_options` raises it, with those of other options
        if cells_are_asked_for(early_config):
            # A session without cells need not import it.
            from pytest_precision.ranks.state.patches import note_patches

            note_patches()
