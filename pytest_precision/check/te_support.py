"""Decide whether layouts that use Transformer Engine can run here, natively or emulated.

On GPUs it is the ranks' own. On the CPU its kernels need the stand-in of `te`, which is decided by
what is installed, without torch.
"""

from __future__ import annotations

import pytest

from pytest_precision.errors import expected_but_got
from pytest_precision.options import Settings
from pytest_precision.ranks.te_stand_in import stand_in

OPTION = "--precision-te"


def refuse_stand_in(settings: Settings) -> None:
    """Raise if the session requests Transformer Engine's CPU stand-in where that cannot run.

    Raises:
        pytest.UsageError: it was asked for; the message says what is missing.
    """
    problem = stand_in().refusal() if settings.te == "cpu" else ""
    if settings.te == "cpu" and settings.device == "cuda":
        problem = expected_but_got(
            "ranks on the CPU", "--precision-device=cuda", "drop one of the two"
        )
    if problem:
        raise pytest.UsageError(f"{OPTION}=cpu: {problem}")


def skip_without(settings: Settings, device: str) -> None:
    """Skip a test whose layouts use Transformer Engine if it cannot run here.

    Args:
        settings: settings of the test.
        device: where its ranks run.
    """
    reason = _obstacle(settings) if device == "cpu" else ""
    if reason:
        pytest.skip(f"Transformer Engine: {reason}")


def _obstacle(settings: Settings) -> str:
    if settings.te == "off":
        return expected_but_got(
            "a GPU, or the stand-in for its kernels,", f"{OPTION}=off", f"use {OPTION}=auto"
        )
    if settings.ranks == "inline":
        return expected_but_got(
            "ranks in separate processes, since the stand-in changes its process for good,",
            "--precision-ranks=inline",
            "use --precision-ranks=reuse or fresh",
        )
    return stand_in().refusal()
