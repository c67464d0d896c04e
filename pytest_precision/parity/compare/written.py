"""Written: criteria as the one who asks for them writes them, to paste them there."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping

Write = Callable[[Mapping[str, str]], str]
"""From kind to call, such as `ulp(1)`, to what is written."""


def in_a_test(calls: Mapping[str, str]) -> str:
    """Write criteria as an argument of `parity.check` and `parity.compare.tensors`."""
    written = ", ".join(f'"{kind}": {call}' for kind, call in calls.items())
    return f"criterion={{{written}}}"


def on_the_command_line(calls: Mapping[str, str]) -> str:
    """Write criteria as options of `python -m pytest_precision compare`."""
    return " ".join(f"--criterion {shlex.quote(f'{kind}={call}')}" for kind, call in calls.items())
