"""What the environment says about the launch that a process belongs to."""

from __future__ import annotations

import launches
import pytest

from pytest_precision.ranks.launch.launch import SERVED, Launch, first_host, without_launch

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


def test_torchrun() -> None:
    """The elastic environment has all there is to know."""
    launch = Launch.of(TORCHRUN)
    assert launch == Launch("torchrun", 5, 8, 1, 2, "node0", "none/node0/29500/0")


def test_two_starts_of_torchrun_have_two_names() -> None:
    """Also where run id and port are its defaults: only its folder for errors is new."""
    alone = {**TORCHRUN, "GROUP_WORLD_SIZE": "1"}
    files = ("/tmp/a/none_x/attempt_0/{}/error.json", "/tmp/b/none_y/attempt_0/{}/error.json")
    names = [
        Launch.of({**alone, "TORCHELASTIC_ERROR_FILE": file.format(rank)}).name
        for file in files
        for rank in (0, 1)
    ]
    assert names[0] == names[1] != names[2] == names[3]


def test_slurm() -> None:
    """A task of a step, with and without an address that the user has set."""
    step = launches.of_srun(1)
    assert Launch.of(step) == Launch("Slurm", 1, 2, 0, 1, "localhost", "4711.0/0")
    launch = Launch.of({**step, "MASTER_ADDR": "gpu01"})
    assert launch is not None
    assert launch.address == "gpu01"


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
    assert Launch.of({**launches.of_srun(0), **changes}) is None


def test_torchrun_beats_slurm() -> None:
    """`srun torchrun`: the processes that matter are those of torchrun."""
    launch = Launch.of({**launches.of_srun(0), **TORCHRUN})
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
    assert without_launch({**TORCHRUN, **launches.of_srun(0), **kept}) == {
        **kept,
        **{name: TORCHRUN[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK")},
    }


@pytest.mark.parametrize(
    ("name", "value", "limit"),
    [
        ("RANK", "abc", "from 0 and below 8"),
        ("RANK", "8", "from 0 and below 8"),
        ("WORLD_SIZE", "-1", "from 1"),
        ("GROUP_RANK", "", "from 0"),
    ],
)
def test_a_variable_that_is_no_number(name: str, value: str, limit: str) -> None:
    """It is named, with what to do."""
    text = f"expected a number {limit}, as .* but got the environment variable {name}={value!r}; "
    with pytest.raises(pytest.UsageError, match=f"{text}unset {name} where"):
        Launch.of({**TORCHRUN, name: value})


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
