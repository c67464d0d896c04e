"""Tell which of torch's functions is running."""

from __future__ import annotations

import sys
from types import FrameType


def is_within(function: str, file: str) -> bool:
    """Return whether this thread is inside a call of a function.

    Args:
        function: its name.
        file: how the name of its file ends.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == function and code.co_filename.endswith(file):
            return True
        frame = frame.f_back
    return False
