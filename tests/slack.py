"""How long a moment is on the machine that runs the tests, and while it does something else too."""

from __future__ import annotations

import functools
import os
import time
from contextlib import closing

from pytest_precision.ranks import RankPool

LEAST = 3.0
"""Seconds; less would measure the scheduler."""

STARTS = 20
"""As many starts of two ranks take longer than any ending, with its blame and its stacks."""


START = 120.0
"""Seconds for a pytest, a fork server and two ranks to start, while the suite's other worker works.

Nothing is measured by it; what cannot start ends here.
"""


@functools.cache
def slack() -> float:
    """Return the seconds that an ending may take beyond what the test waits for by design.

    Measured once a session, so that one literal serves a laptop and a busy shared runner; what
    hangs takes until a deadline and is far beyond it.
    """
    with closing(RankPool("fresh", timeout=60)) as ranks:
        ranks.run(2, os.getpid)  # starts the fork server
        started = time.monotonic()
        ranks.run(2, os.getpid)
    return LEAST + STARTS * (time.monotonic() - started)
