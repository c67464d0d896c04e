"""No room for the traces of a cell."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_precision import layouts

SUITE = """
    import pytest
    from test_full_disk import limited
    from pytest_precision import layouts, workloads

    @pytest.mark.precision_matrix(world_size=[2], sequence=["train4"])
    def test_large(cell, parity):
        parity.check({candidate}, layouts.adamw, workload=workloads.mlp)

    @pytest.mark.precision_matrix(world_size=[2], sequence=["train1"])
    def test_small(cell, parity):
        parity.check(layouts.ddp, layouts.adamw, workload=workloads.mlp)
"""

OPTIONS = "--precision-matrix", "--precision-device=cpu", "-vv"

OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
"""What follows runs in a mount namespace of its own, which needs no privilege."""

MOUNT = 'mount -t tmpfs -o size=1536k none "$0" && exec "$@"'


def limited(workload, cell):
    """A layout whose ranks may not write files of more than some kilobytes."""
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    return layouts.ddp(workload, cell)


def test_a_file_that_may_not_grow_fails_its_cell(pytester, nothing_left):
    """With the rank's error; the next cell has ranks without the limit."""
    pytester.makepyfile(test_session=SUITE.format(candidate="limited"))
    found = pytester.runpytest_inprocess(*OPTIONS)
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(
        [
            "test_session.py::test_large* FAILED*",
            "test_session.py::test_small* PASSED*",
            "*error: the candidate failed: rank * raised OSError: [[]Errno 27[]] File too large",
        ]
    )


def test_a_full_disk_fails_its_cell(pytester, monkeypatch):
    """With the rank's error; what had been written is removed, and the next cell has the room."""
    disk = pytester.mkdir("disk")
    if shutil.which("unshare") is None or subprocess.call([*OWN_MOUNTS, MOUNT, disk, "true"]):
        pytest.skip("a file system of 1.5 megabytes cannot be mounted here")
    pytester.makepyfile(test_session=SUITE.format(candidate="layouts.ddp"))
    monkeypatch.setenv("TMPDIR", str(disk))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=":")
    command = sys.executable, "-m", "pytest", *OPTIONS
    found = pytester.run(*OWN_MOUNTS, MOUNT, disk, *command)
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(
        [
            "test_session.py::test_large* FAILED*",
            "test_session.py::test_small* PASSED*",
            "*error: the * failed: rank * raised OSError: [[]Errno 28[]] No space left on *; *",
        ]
    )
