"""Import modules once in the fork server, so that a rank forked from it starts in milliseconds.

Without `torch._dynamo` and the settings of inductor here, each rank would import them when it
builds an optimizer or requests deterministic algorithms, which takes seconds per rank.
"""

import importlib
import os
import sys
import traceback

from pytest_precision._folders import folders_of_controllers
from pytest_precision._interrupts import uncollected
from pytest_precision.ranks.code.module_files import imported_files
from pytest_precision.ranks.process import lifeline, preloaded, reaper

MODULES = (
    "torch",
    "torch.distributed",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.optim",
    "torch._dynamo",
    "torch._inductor.config",
    "pytest_precision.ranks.process.worker",
    "pytest_precision.recorders.engine_recorder",
    "pytest_precision.probes.gradients.gradient_probe",
    "pytest_precision.probes.declared_rule.update_watcher",
    # What a side of most cells is made of.
    "pytest_precision.check.side",
    "pytest_precision.layouts.optimizer_layouts",
    "pytest_precision.layouts.sharded",
    "pytest_precision.layouts.megatron.experts",
    "pytest_precision.layouts.megatron.optimizer",
    "pytest_precision.layouts.replicated",
    "pytest_precision.probes.by_itself.engine_probe",
    "pytest_precision.probes.by_itself.loop_probe",
    "pytest_precision.probes.declared_rule.loop_updates",
    "pytest_precision.probes.lines.logged_run",
    "pytest_precision.probes.lines.logged_script",
    "pytest_precision.probes.loop_rules.rules_probe",
    "pytest_precision.recorders.scripts.script_recorder",
    "pytest_precision.workloads.language_model",
    "pytest_precision.workloads.mixture",
    "pytest_precision.workloads.perceptron",
    # Jobs are defined in test files, which import pytest, and `Parity` for its annotation.
    "pytest",
    "pytest_precision.check.parity",
)

# Set before torch is imported: OpenBLAS would start a thread, and a process with threads must not
# fork.
os.environ["OMP_NUM_THREADS"] = "1"

_controller = int(os.environ.pop(reaper.CONTROLLER, os.getppid()))
_leave = reaper.reap_after(_controller, folders_of_controllers())

# Ranks share the pages of objects that are never collected until one is written to.
with uncollected(), lifeline.tied_imports(_controller, _leave):
    try:
        for _name in MODULES:
            importlib.import_module(_name)
        preloaded.take_in()
        imported_files().take_in()
        # Ranks inherit the code of this process, in which only this has been replaced.
        from pytest_precision._torch.distributed import share_gloo_device
        from pytest_precision.ranks.state.before_job import before_jobs_of_process

        share_gloo_device()
        before_jobs_of_process()
    except Exception:
        # The import fails again in the ranks, perhaps before they can report why.
        print("precision: the code that every rank starts with failed:", file=sys.stderr)
        traceback.print_exc()
