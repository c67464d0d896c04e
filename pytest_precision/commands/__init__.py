"""Commands: what `python -m pytest_precision` does without pytest, one module per command."""

from __future__ import annotations

import os
import sys


def say(text: str) -> None:
    """Print text; a reader such as `head`, who has had enough, is no error."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        # Python writes what is left when it ends, and would say that it cannot.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
