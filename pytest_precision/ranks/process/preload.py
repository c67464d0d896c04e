"""What the fork server imports once, so that a rank starts in milliseconds; importing is the work.

Without `torch._dynamo` and the settings of inductor, each rank imports them by itself as soon as it
builds an optimizer or asks for deterministic algorithms: seconds a rank.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
import traceback

from pytest_precision.ranks.process import undertaker

MODULES = (
    "torch",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.optim",
    "torch._dynamo",
    "torch._inductor.config",
    "pytest_precision.ranks.process.worker",
    "pytest_precision.trace.record",
    # Whatever a rank runs comes from a file of tests, and those import it.
    "pytest",
)

# Before torch: a second thread (OpenBLAS makes one) is what a process must not have when it forks.
os.environ["OMP_NUM_THREADS"] = "1"

undertaker.attend(os.getppid(), undertaker.folders_are_in())

try:
    for _name in MODULES:
        importlib.import_module(_name)
    # Ranks have the code of this process, in which nobody has replaced any.
    importlib.import_module("pytest_precision.ranks.state.baseline").of_this_process()
except Exception:
    # It fails again in the ranks, perhaps before they can say why.
    print("precision: what ranks are made from is broken:", file=sys.stderr)
    traceback.print_exc()

# What is here now is never collected: ranks share these pages as long as nobody touches them.
gc.freeze()
