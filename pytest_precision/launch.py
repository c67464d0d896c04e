"""Launch: this process as one of several that torchrun or Slurm's srun has started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

SERVED = "PYTEST_PRECISION_LAUNCH"
"""Environment variable that names the launch whose processes have found each other: whatever they
start from then on inherits the launcher's variables, and is none of its processes."""

TORCHRUN = ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
SLURM = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
"""An `sbatch` script has SLURM_PROCID and SLURM_NTASKS too; SLURM_STEP_NUM_TASKS is srun's."""

SLURMS_OWN_STEPS = 0xFFFFFFF0
"""From here on step ids are Slurm's own (slurm/slurm.h): interactive, batch and extern steps."""

_OF_A_LAUNCHER = re.compile(
    r"TORCHELASTIC_.*|MASTER_(ADDR|PORT)|(GROUP|ROLE)_(RANK|WORLD_SIZE|NAME)"
    r"|SLURM_(PROCID|LOCALID|NODEID|NTASKS|NPROCS|STEPID|STEP_.*)"
)


@dataclass(frozen=True, slots=True)
class Launch:
    """The place of this process among those that were started together.

    Attributes:
        launcher: that started them.
        rank: from 0.
        world_size: number of processes.
        node: number of its node.
        address: of the machine of rank 0, where all reach a store at `port`.
        port: of that store.
        serves: whether rank 0 has to serve the store; otherwise the launcher does.
        attempt: number of the start; a launcher that starts all again keeps its store.
    """

    launcher: Literal["torchrun", "Slurm"]
    rank: int
    world_size: int
    node: int
    address: str
    port: int
    serves: bool
    attempt: int

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Launch | None:
        """What the environment of a process says about it; None for one that stands alone."""
        launch = _torchrun(environment) or _slurm(environment)
        if launch is None or environment.get(SERVED) == launch.name:
            return None
        return launch

    @property
    def name(self) -> str:
        """Of the whole launch, the same in all its processes."""
        return f"{self.address}:{self.port}/{self.attempt}"


def plain(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without what makes a process one of a launch."""
    return {name: v for name, v in environment.items() if not _OF_A_LAUNCHER.fullmatch(name)}


def first_host(nodes: str) -> str:
    """The first host of a Slurm node list such as `gpu[03-06,09],login1`."""
    prefix, bracket, rest = nodes.partition("[")
    if not bracket or "," in prefix:
        return prefix.partition(",")[0]
    number = re.split("[],-]", rest, maxsplit=1)[0]
    suffix = rest.partition("]")[2].partition(",")[0]
    return f"{prefix}{number}{suffix}"


def _torchrun(environment: Mapping[str, str]) -> Launch | None:
    if any(not environment.get(name) for name in TORCHRUN):
        return None
    return Launch(
        launcher="torchrun",
        rank=int(environment["RANK"]),
        world_size=int(environment["WORLD_SIZE"]),
        node=int(environment.get("GROUP_RANK", 0)),
        address=environment["MASTER_ADDR"],
        port=int(environment["MASTER_PORT"]),
        # As torch.distributed.rendezvous reads it.
        serves=environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True",
        attempt=int(environment.get("TORCHELASTIC_RESTART_COUNT", 0)),
    )


def _slurm(environment: Mapping[str, str]) -> Launch | None:
    if any(not environment.get(name) for name in SLURM):
        return None
    step, tasks = int(environment["SLURM_STEP_ID"]), int(environment["SLURM_STEP_NUM_TASKS"])
    if tasks < 2 or step >= SLURMS_OWN_STEPS:
        return None
    # Steps of one job may run side by side: each has a port of its own, above what is reserved
    # and below those that the kernel hands out.
    port = 16_384 + (int(environment["SLURM_JOB_ID"]) * 31 + step) % 16_384
    return Launch(
        launcher="Slurm",
        rank=int(environment["SLURM_PROCID"]),
        world_size=tasks,
        node=int(environment.get("SLURM_NODEID", 0)),
        address=environment.get("MASTER_ADDR")
        or first_host(environment.get("SLURM_STEP_NODELIST", "localhost")),
        port=int(environment.get("MASTER_PORT") or port),
        serves=True,
        attempt=int(environment.get("SLURM_RESTART_COUNT", 0)),
    )
