"""What ranks need of torch is public, or missed by nobody where a release lacks it."""

from __future__ import annotations

import importlib
import subprocess
import sys
import warnings

import pytest
import torch

from pytest_precision.ranks import RankPool
from pytest_precision.ranks.needs import Needs
from pytest_precision.ranks.state import fingerprint
from pytest_precision.ranks.state.fingerprint import read_state


def read_without_flags():
    """Return what is read where a release of torch lacks some of what there is to read."""
    for name in dir(torch._C):
        if name.startswith(("_get_cublas_", "_get_cudnn_")):
            delattr(torch._C, name)
    del torch.is_anomaly_enabled
    state = importlib.reload(fingerprint).read_state()
    return str(state["default dtype"]), str(state["anomaly detection"])


BROKEN = """
import sys
sys.modules["torch._inductor.config"] = None
import pytest_precision.ranks.process.preload
"""


def output_of(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def test_a_flag_that_a_release_lacks_is_unreadable(pool: RankPool):
    """The others are read as ever."""
    alone = Needs(fresh=True, may_leave=("*",))
    [(dtype, flag)] = pool.run(1, read_without_flags, needs=alone)
    assert dtype == "torch.float32"
    assert flag.startswith("unreadable: ")


def test_the_fork_server_says_what_it_cannot_import():
    """Its ranks may fail before they can."""
    ended = output_of(BROKEN)
    assert ended.returncode == 0
    assert "the code that every rank starts with failed:" in ended.stderr
    assert "import of torch._inductor.config halted" in ended.stderr


@pytest.mark.parametrize(
    ("action", "module", "is_state"),
    [
        ("ignore", "torch.optim.lr_scheduler", False),
        ("once", r"^torch\.nn", False),
        ("error", "torch.optim.lr_scheduler", True),
        ("ignore", "torch", True),
        ("ignore", "torchvision.io", True),
        ("ignore", "", True),
    ],
)
def test_a_filter_of_what_torch_prints_is_no_state(
    action: str, module: str, is_state: bool
) -> None:
    """Packages such as Accelerate add one when a job imports them, and no number depends on it.

    One that makes an error of a warning is state, and so is one that fits modules of others, too.
    """
    before = read_state()["warnings filter"]
    with warnings.catch_warnings():
        warnings.filterwarnings(action, category=UserWarning, module=module)
        assert (read_state()["warnings filter"] != before) is is_state
