"""The check before a matrix: it has GPUs, and has them to itself."""

from __future__ import annotations

import pytest
from runner import GITHUB, Runner

SMI = """
case "$*" in
*query-gpu*) echo '{gpus}'; exit {status};;
*query-compute-apps*) echo '{processes}';;
esac
"""

FREE = "0, NVIDIA H200, 4"


def check(runner: Runner, **environment: str) -> tuple[int, str]:
    """Run the script; return its status and what it wrote."""
    block = '"$GITHUB_ACTION_PATH/check-gpus"'
    process = runner.start(block, GITHUB / "actions" / "precision-matrix", environment)
    written, _ = process.communicate(timeout=60)
    return process.returncode, written


def smi(runner: Runner, gpus: str = FREE, processes: str = "", status: int = 0) -> None:
    """Install a nvidia-smi that says this."""
    runner.program("nvidia-smi", SMI.format(gpus=gpus, processes=processes, status=status))


@pytest.mark.parametrize("gpus", [FREE, f"{FREE}\n1, NVIDIA H200, 0", "0, NVIDIA GB10, [N/A]"])
def test_free_gpus_will_do(runner: Runner, gpus: str) -> None:
    """They are listed in the log; one that does not tell its memory is not suspected."""
    smi(runner, gpus)
    assert check(runner) == (0, f"{gpus}\n")


def test_a_machine_without_a_driver_is_refused(runner: Runner) -> None:
    """With what to do, as an annotation."""
    status, written = check(runner)
    assert status == 1
    assert written.startswith("::error title=precision matrix::expected a GPU but got a machine")


@pytest.mark.parametrize(
    ("gpus", "processes", "status", "message"),
    [
        ("No devices were found", "", 6, "nvidia-smi found none (No devices were found)"),
        ("", "", 0, "nvidia-smi found none (it printed nothing)"),
        (FREE, "812, python", 0, "one that a process holds (pid, name): 812, python"),
        (FREE, "1, a\n2, 100%", 0, "(pid, name): 1, a%0A2, 100%25; wait"),
        ("0, T4, 3\n1, T4, 9000", "", 0, "GPU 1 (T4) with 9000 MiB in use"),
    ],
    ids=["no devices", "nothing", "a process", "escaped", "a process in another container"],
)
def test_a_gpu_that_is_missing_or_busy_is_refused(
    runner: Runner, gpus: str, processes: str, status: int, message: str
) -> None:
    """The annotation is one line."""
    smi(runner, gpus, processes, status)
    code, written = check(runner)
    assert code == 1
    (annotation,) = [line for line in written.splitlines() if line.startswith("::error")]
    assert message in annotation


def test_only_the_gpus_of_the_job_are_looked_at(runner: Runner) -> None:
    """Others of the machine may be busy; a job that may use none has none."""
    runner.program(
        "nvidia-smi",
        f'case "$*" in *gpu*--id=2,3*) echo "{FREE}";; *--id=2,3*) ;; *) exit 9;; esac',
    )
    assert check(runner, CUDA_VISIBLE_DEVICES="2,3") == (0, f"{FREE}\n")
    status, written = check(runner, CUDA_VISIBLE_DEVICES="")
    assert status == 1
    assert "CUDA_VISIBLE_DEVICES=''" in written
