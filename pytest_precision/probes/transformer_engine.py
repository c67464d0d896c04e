"""Transformer Engine: whether layouts that use it can run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_precision.registered import ProbeSpec

if TYPE_CHECKING:
    from pytest_precision.matrix.declared import Declared
    from pytest_precision.options import Settings


def skip_without_engine(declared: Declared, settings: Settings, device: str) -> None:
    """Skip a test whose layout or function uses Transformer Engine if that cannot run here."""
    if declared.transformer_engine:
        # Only here: few layouts use it.
        from pytest_precision.check.te_support import skip_without

        skip_without(settings, device)


PROBE = ProbeSpec(name="transformer_engine", skips=skip_without_engine, in_bare=True)
