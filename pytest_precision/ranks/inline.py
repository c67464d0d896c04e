"""The `inline` backend: the calling process is the only rank, so that a debugger just works."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pytest_precision._folders import OwnFolder
from pytest_precision.errors import WorldSizeError, expected_but_got
from pytest_precision.ranks.code.module_files import ModuleFile
from pytest_precision.ranks.gpus import devices
from pytest_precision.ranks.job import Job
from pytest_precision.ranks.state import leaks
from pytest_precision.ranks.state.environment import Environment, patched


class InlineGroup:
    """Runs functions in the calling process, which is the only rank, without a deadline.

    Code that a job replaces is restored after it, since there are no other ranks for the next job.
    Exceptions of the function pass through unchanged. Arguments are pickled here too, so that this
    backend refuses the same arguments. The variables of a rank are set while a job runs, which is
    too late for those that torch has already read. On a GPU it uses that of its xdist worker.

    Raises:
        WorldSizeError: more than one rank is requested.
    """

    modules: frozenset[ModuleFile] = frozenset()
    output: Mapping[int, str] = {}  # pytest captures what this process prints
    room = 1.0

    def __init__(self, world_size: int, device: str, environment: Environment) -> None:
        if world_size > 1:
            raise WorldSizeError(world_size, 1, "since inline mode has only the calling process")
        self._device = device
        self._variables = environment.of_rank(0, 1, 0, 1)

    def serves(self, timeout: float) -> bool:
        """Return True: the calling process can serve any function call."""
        return True

    def run(self, job: Job, timeout: float) -> list[Any]:
        """Call `job` in this process, in a process group of one; return a list with its result."""
        __tracebackhide__ = True
        import torch.distributed as dist

        from pytest_precision.ranks.state import process_groups, starting_point
        from pytest_precision.ranks.state.before_job import Outcome, before_jobs_of_caller

        if dist.is_initialized():
            raise RuntimeError(
                expected_but_got(
                    "no process group in the calling process",
                    f"one of {dist.get_world_size()} ranks",
                    "destroy it, or leave inline mode",
                )
            )
        with OwnFolder() as folder, self._on_device(timeout) as place:
            dist.init_process_group(
                devices.backend(self._device, shared=False),
                store=dist.FileStore(str(folder / "store"), 1),  # type: ignore[attr-defined]
                rank=0,
                world_size=1,
            )
            try:
                with starting_point.borrowed(), patched(self._variables | place):
                    job_before = before_jobs_of_caller()
                    job_before.code.renew()
                    outcome: Outcome | None = None
                    try:
                        outcome = job_before.run(job)
                    finally:
                        if outcome is None or outcome.leaks:
                            job_before.code.put_back(job.may_leave)
            finally:
                process_groups.close_unused()
                dist.destroy_process_group()
        leaks.warn(
            job.name, [outcome.leaks], "In inline mode, it may affect later tests in this process"
        )
        return [outcome.result]

    @contextmanager
    def _on_device(self, seconds: float) -> Iterator[dict[str, str]]:
        """Lock this process's GPU during the block; yield environment variables that select it."""
        if self._device != "cuda":
            yield {}
            return
        from pytest_precision.ranks.gpus import own_device

        with (
            own_device.device_of_worker() as index,
            devices.held({own_device.device_uuid()}, seconds),
        ):
            yield {"LOCAL_RANK": str(index)}

    def close(self) -> None:
        """Do nothing: there is no process to end."""

    def kill(self) -> None:
        """Do nothing: there is no process to end."""
