"""Command process: make a rank what `torchrun` starts for a script file, with nothing learned.

Such a process is in no process group of ours and has imported nothing of the user's. It runs one
job, whose arguments are plain data and whose function is of this package; then it ends.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import sys
from multiprocessing import process as processes
from typing import TYPE_CHECKING, Any

from pytest_precision.ranks.code.python_path import path_of_python
from pytest_precision.ranks.code.relocation import relocation_of_process
from pytest_precision.ranks.process.messages import Ready, Unavailable

if TYPE_CHECKING:
    from pytest_precision.ranks.job import Job
    from pytest_precision.ranks.process.worker import Membership


def begin_launched(membership: Membership) -> Ready | Unavailable:
    """Give this process its variables, as torchrun sets them, and forget who has started it.

    On a machine with GPUs it chooses one, as every rank does, but starts nothing on it.
    """
    os.environ.clear()
    os.environ.update(membership.variables)
    _forget_parent()

    # Only here, since the controller imports this module and does without numpy and torch.
    import numpy as np

    np.random.seed()  # forks of one server would all draw the same numbers; Python seeds its own
    if membership.device != "cuda":
        return Ready()
    from pytest_precision.ranks.gpus import own_device

    choice = own_device.choose_device(
        membership.local_rank, membership.sharing, membership.ranks_per_device
    )
    return Unavailable(choice) if isinstance(choice, int) else Ready(own_device.show_device(choice))


def run_launched(job: Job) -> Any:
    """Call a job's function from the caller's directory, with the `sys.path` of `python file`.

    Unlike other jobs it gets neither pytest's `sys.path` nor a defined state of torch.
    """
    moves = relocation_of_process()
    os.chdir(job.directory if moves is None else moves.folder_of(job.directory))
    path = path_of_python()
    sys.path[:] = path if moves is None else moves.moved(path)
    importlib.invalidate_caches()
    return job.call.resolve()()


def _forget_parent() -> None:
    """Let multiprocessing take this process for one that nobody has started with it.

    Otherwise a script could not choose a start method, which a fork inherits, and would see a name
    and a parent that `python file` does not have.
    """
    multiprocessing.set_start_method(None, force=True)
    multiprocessing.current_process().name = "MainProcess"
    # The rest has no public names: children of the script are counted, and so called, from 1.
    state: Any = processes
    state.current_process()._identity = ()
    state._parent_process = None
