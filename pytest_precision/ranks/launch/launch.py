"""Launch: the place of this process among those that torchrun or Slurm's srun has started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Literal

from pytest_precision.errors import expected_but_got

SERVED = "PYTEST_PRECISION_LAUNCH"
"""Environment variable that names a launch whose processes have met. Processes that these start
later inherit the launcher's variables, but do not belong to the launch."""

TORCHRUN = ("TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
SLURM = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID")
"""SLURM_PROCID and SLURM_NTASKS are set in an `sbatch` script too; SLURM_STEP_NUM_TASKS is not."""

SLURMS_OWN_STEPS = 0xFFFFFFF0
"""Step ids from here on are reserved (slurm/slurm.h): interactive, batch and extern steps."""

_LAUNCHER_VARIABLE = re.compile(
    r"TORCHELASTIC_.*|MASTER_(ADDR|PORT)|(GROUP|ROLE)_(RANK|WORLD_SIZE|NAME)"
    r"|SLURM_(PROCID|LOCALID|NODEID|NTASKS|NPROCS|STEPID|STEP_.*)"
)


@dataclass(frozen=True, slots=True)
class Launch:
    """A process's rank and size among the processes that torchrun or srun started.

    Attributes:
        launcher: program that started them.
        rank: number of this process, from 0.
        world_size: number of processes.
        node: number of its node.
        nodes: number of nodes; several nodes may be the same machine.
        address: address of the machine of rank 0.
        name: name of the whole launch, equal in all its processes and different from other
            launches.
    """

    launcher: Literal["torchrun", "Slurm"]
    rank: int
    world_size: int
    node: int
    nodes: int
    address: str
    name: str

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Launch | None:
        """Return how torchrun or srun started this process; None if neither did.

        Raises:
            pytest.UsageError: a launcher's variable is not a valid number.
        """
        launch = _torchrun(environment) or _slurm(environment)
        if launch is None or environment.get(SERVED) == launch.name:
            return None
        return launch

    @property
    def sign(self) -> str:
        """The name of an environment variable that only torchrun or srun sets for a process."""
        return TORCHRUN[0] if self.launcher == "torchrun" else SLURM[2]


@dataclass(frozen=True, slots=True)
class Master:
    """Where the processes of a script meet that makes its own process group.

    Attributes:
        address: of the machine of rank 0, as the others see it.
        port: a port of it that is free.
    """

    address: str
    port: int


def variables_of_torchrun(
    rank: tuple[int, int], local_rank: tuple[int, int], node: tuple[int, int], master: Master
) -> dict[str, str]:
    """Return the environment variables that torchrun sets for one process of a script.

    The store is the script's own, as with torchrun's static rendezvous without a shared store.

    Args:
        rank: number of the process, and how many there are.
        local_rank: the same on its machine.
        node: number of the machine, and how many there are.
        master: where they meet.
    """
    return {
        "RANK": str(rank[0]),
        "WORLD_SIZE": str(rank[1]),
        "LOCAL_RANK": str(local_rank[0]),
        "LOCAL_WORLD_SIZE": str(local_rank[1]),
        "GROUP_RANK": str(node[0]),
        "GROUP_WORLD_SIZE": str(node[1]),
        "ROLE_RANK": str(rank[0]),
        "ROLE_WORLD_SIZE": str(rank[1]),
        "ROLE_NAME": "default",
        "MASTER_ADDR": master.address,
        "MASTER_PORT": str(master.port),
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def without_launch(environment: Mapping[str, str]) -> dict[str, str]:
    """Return environment variables without those that torchrun or srun sets."""
    return {name: v for name, v in environment.items() if not _LAUNCHER_VARIABLE.fullmatch(name)}


def first_host(nodes: str) -> str:
    """Return the first host of a Slurm node list such as `gpu[03-06,09],login1`."""
    prefix, bracket, rest = nodes.partition("[")
    if not bracket or "," in prefix:
        return prefix.partition(",")[0]
    number = re.split("[],-]", rest, maxsplit=1)[0]
    suffix = rest.partition("]")[2].partition(",")[0]
    return f"{prefix}{number}{suffix}"


def _torchrun(environment: Mapping[str, str]) -> Launch | None:
    if any(not environment.get(name) for name in TORCHRUN):
        return None
    world_size = _number(environment, "WORLD_SIZE", 1)
    nodes = _number(environment, "GROUP_WORLD_SIZE", 1, "1")
    return Launch(
        launcher="torchrun",
        rank=_number(environment, "RANK", 0, below=world_size),
        world_size=world_size,
        node=_number(environment, "GROUP_RANK", 0, "0"),
        nodes=nodes,
        address=environment["MASTER_ADDR"],
        name=_name_of_torchrun(environment, nodes),
    )


def _name_of_torchrun(environment: Mapping[str, str], nodes: int) -> str:
    names = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")
    name = "/".join(environment.get(name, "0") for name in names)
    # With its defaults, every torchrun has the same run id and port. What differs is a folder that
    # it makes per node and start: .../attempt_0/<local rank>/error.json
    error_file = environment.get("TORCHELASTIC_ERROR_FILE", "")
    return f"{name}:{PurePath(error_file).parent.parent}" if nodes == 1 else name


def _slurm(environment: Mapping[str, str]) -> Launch | None:
    if any(not environment.get(name) for name in SLURM):
        return None
    step = _number(environment, "SLURM_STEP_ID", 0)
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS", 1)
    if tasks < 2 or step >= SLURMS_OWN_STEPS:
        return None
    restarts = environment.get("SLURM_RESTART_COUNT", "0")
    return Launch(
        launcher="Slurm",
        rank=_number(environment, "SLURM_PROCID", 0, below=tasks),
        world_size=tasks,
        node=_number(environment, "SLURM_NODEID", 0, "0"),
        nodes=_number(environment, "SLURM_STEP_NUM_NODES", 1, "2"),
        address=environment.get("MASTER_ADDR")
        or first_host(environment.get("SLURM_STEP_NODELIST", "localhost")),
        name=f"{environment['SLURM_JOB_ID']}.{step}/{restarts}",
    )


def _number(
    environment: Mapping[str, str],
    name: str,
    least: int,
    default: str = "",
    below: float = float("inf"),
) -> int:
    text = environment.get(name, default)
    if text.isdecimal() and least <= int(text) < below:
        return int(text)
    import pytest  # imported here, since ranks use this module without pytest

    limit = "" if below == float("inf") else f" and below {below}"
    raise pytest.UsageError(
        expected_but_got(
            f"a number from {least}{limit}, as a launcher sets it,",
            f"the environment variable {name}={text!r}",
            f"unset {name} where no launcher started this process",
        )
    )
