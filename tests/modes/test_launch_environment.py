"""What the environment says about the launch that a process belongs to."""

from __future__ import annotations

import launches
import pytest

from pytest_precision.launch import SERVED, Launch, first_host, plain

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


def test_torchrun() -> None:
    """The elastic environment has all there is to know."""
    launch = Launch.of(TORCHRUN)
    assert launch == Launch("torchrun", 5, 8, 1, "node0", 29500, serves=False, attempt=0)


def test_torchrun_without_a_store_of_its_own() -> None:
    """With `--rdzv-backend=static`, rank 0 serves the store."""
    launch = Launch.of({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "False"})
    assert launch is not None
    assert launch.serves


def test_slurm() -> None:
    """A task of a step, with and without an address that the user has set."""
    step = launches.of_srun(1, 29501)
    assert Launch.of(step) == Launch("Slurm", 1, 2, 0, "localhost", 29501, serves=True, attempt=0)
    del step["MASTER_PORT"]
    launch = Launch.of({**step, "MASTER_ADDR": "gpu01"})
    assert launch is not None
    assert launch.address == "gpu01"
    assert 1024 < launch.port < 32_768


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_STEP_NUM_TASKS": "", "SLURM_STEP_ID": ""},
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_STEP_ID": str(0xFFFFFFFB)},
        {"SLURM_STEP_ID": str(0xFFFFFFFA)},
    ],
    ids=["sbatch", "one task", "batch step", "interactive step"],
)
def test_slurm_without_srun(changes: dict[str, str]) -> None:
    """The shell of an allocation has SLURM_PROCID and SLURM_NTASKS, and is no launch."""
    assert Launch.of({**launches.of_srun(0, 29501), **changes}) is None


def test_torchrun_beats_slurm() -> None:
    """`srun torchrun`: the processes that matter are those of torchrun."""
    launch = Launch.of({**launches.of_srun(0, 29501), **TORCHRUN})
    assert launch is not None
    assert launch.launcher == "torchrun"


def test_what_a_launched_process_starts() -> None:
    """It inherits the variables, and is not launched itself; a launch of its own is."""
    launch = Launch.of(TORCHRUN)
    assert launch is not None
    inherited = {**TORCHRUN, SERVED: launch.name}
    assert Launch.of(inherited) is None
    assert Launch.of({**inherited, "MASTER_PORT": "29777"}) is not None


def test_plain_takes_the_launcher_away_and_nothing_else() -> None:
    """What ranks see is what they see without a launcher."""
    kept = {"PATH": "/bin", "SLURM_JOB_ID": "1", "CUDA_VISIBLE_DEVICES": "3", "ROLE": "x"}
    assert plain({**TORCHRUN, **launches.of_srun(0, 1), **kept}) == {
        **kept,
        **{name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")},
    }


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[03-06,09],login1", "gpu03"),
        ("gpu[7]", "gpu7"),
        ("login1,gpu[03-06]", "login1"),
        ("rack[1-2]-x,b", "rack1-x"),
    ],
)
def test_first_host(nodes: str, first: str) -> None:
    """Slurm writes node lists in brackets."""
    assert first_host(nodes) == first
