"""Which test files one worker of pytest-xdist runs: those that share what is slow to start."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

UNITS = {
    "ranks that have Transformer Engine": ("tests/te/",),
    "servers of two commits": ("tests/commands/test_bisect.py", "tests/commands/test_diff.py"),
}
"""What files share, and how their names begin. Each worker that runs one of them starts it, and
what comes next may have to start another server in its place."""


def unit_of(file: str) -> str:
    """Return what goes to one worker as a whole: a test file, or all that share servers with it."""
    return next((unit for unit, files in UNITS.items() if file.startswith(files)), file)


class ByServer(LoadFileScheduling):
    """Gives workers a file each, as `--dist loadfile` does, and files that share servers to one."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the unit of a test."""
        return unit_of(super()._split_scope(nodeid))
