"""Commands: what `python -m pytest_precision` does without pytest, one module per command."""

from __future__ import annotations

import os
import sys


def say(text: str) -> None:
    """Print text to standard output, without an error if a reader such as `head` has ended.

    A character that the terminal's encoding lacks is printed as its escape sequence.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except BrokenPipeError:
        # Python writes what is left when it ends, and would say that it cannot.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
