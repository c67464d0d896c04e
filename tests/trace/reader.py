"""Compare pairs of recordings as the command does, in a process that a bad one may kill.

Reads a JSON list of two folders from each line, and answers with the exit status and what was said;
the status of an exception is its traceback.
"""

from __future__ import annotations

import io
import json
import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout

from pytest_precision.__main__ import main


def compared(candidate: str, reference: str) -> tuple[object, str]:
    """Return the exit status and what was said, or a traceback and nothing."""
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            status: object = main(["compare", candidate, reference])
        except SystemExit as end:
            status = end.code
        except BaseException:
            return traceback.format_exc(), ""
    return status, said.getvalue()


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(compared(*json.loads(line))), flush=True)
