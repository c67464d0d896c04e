"""The command for machines with a GPU says at once what it lacks, and sends nothing private."""

from __future__ import annotations

import getpass
import inspect
import os
import re
import shutil
import subprocess
import tarfile
from pathlib import Path

import gpu_sides
import pytest

from pytest_precision import layouts

ROOT = Path(__file__).parents[2]

COMMAND = ROOT / "ci" / "gpu"


STUB_PYTHON = """\
#!/bin/bash
# The last word says where the machine is, as a traceback may.
for word in "$@"; do
    case "$word" in
        --junitxml=*) echo '<testsuite hostname="node.cluster"/>' > "${word#--junitxml=}" ;;
        --precision-report=*) echo "$PWD" > "${word#--precision-report=}/report.html" ;;
    esac
done
echo "$@" >> "$LOG"
echo "ran in $PWD and /tmp/pytest-of-$(id -un) on node of all nodes from $HOME/venv"
echo "waiting for device 01234567-89ab-cdef-0123-456789abcdef, which process 9 holds"
case "$*" in *test_native*) exit 1 ;; esac
"""

STUBS = {
    "python": STUB_PYTHON,
    "nvidia-smi": "#!/bin/bash\nprintf 'name, driver_version\\nNVIDIA H100, 580.65\\n'\n",
    "hostname": "#!/bin/bash\necho node.cluster\n",
}


@pytest.fixture
def without_driver(tmp_path: Path) -> dict[str, str]:
    """An environment whose path has what the command needs, but no `nvidia-smi`."""
    for name in ("bash", "dirname", "env"):
        (tmp_path / name).symlink_to(f"/usr/bin/{name}" if name != "bash" else "/bin/bash")
    return {"PATH": str(tmp_path)}


@pytest.mark.parametrize(
    ("argument", "status", "words"),
    [
        ("", 1, "expected a GPU that nvidia-smi lists but got none"),
        ("--no-deps", 1, "expected a GPU that nvidia-smi lists but got none"),
        ("--all", 2, "expected --no-deps, --dry-run or --minutes N but got '--all'"),
        ("--minutes", 2, "expected --minutes with a number from 1 to 99 but got 'none'"),
    ],
)
def test_it_ends_before_it_installs_anything(
    without_driver: dict[str, str], argument: str, status: int, words: str
) -> None:
    """Who has no GPU is told so, and how to see the folder all the same."""
    command = [str(COMMAND), *filter(None, [argument])]
    ran = subprocess.run(command, env=without_driver, capture_output=True, text=True, timeout=30)
    assert (ran.returncode, ran.stdout) == (status, "")
    assert words in ran.stderr


@pytest.fixture
def with_gpu(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A checkout with the command, and programs that say what those of such a machine do."""
    checkout, programs = tmp_path / "checkout", tmp_path / "programs"
    (checkout / "fixtures" / "downstream").mkdir(parents=True)
    (checkout / "ci").mkdir()
    shutil.copy(COMMAND, checkout / "ci")
    programs.mkdir()
    for name, text in STUBS.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    home = str(tmp_path / "home" / "someone")
    own = {"PATH": path, "PYTHON": "python", "HOME": home, "LOG": str(tmp_path / "log")}
    return checkout, own


def test_the_folder_is_complete_and_names_no_machine(
    with_gpu: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    """All parts run after one has failed, on the GPU; the summary says which, and of what card."""
    checkout, own = with_gpu
    command = [str(checkout / "ci" / "gpu"), "--no-deps"]
    ran = subprocess.run(command, env=own, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stderr) == (1, "")
    parts = ["gpus", "topology", "versions", "native", "kernels", "kernel-calls"]
    parts += [
        "benchmark-recording",
        "benchmark-digests",
        "benchmark-formats",
        "tests-gpu",
        "matrix",
    ]
    out = checkout / "gpu-report"
    tests = {f"{name}.xml" for name in ("native", "kernels", "tests-gpu", "matrix")}
    texts = {f"{name}.txt" for name in parts}
    assert {file.name for file in out.iterdir()} == {*tests, *texts, "report.html", "summary.md"}
    summary = (out / "summary.md").read_text()
    assert summary.startswith("# NVIDIA H100, 580.65\n")
    rows = {name: ended for name, _, ended in table(summary)}
    assert [*rows] == parts
    assert [name for name, ended in rows.items() if "exit status 0" not in ended] == ["native"]
    assert "Something failed in " in summary
    private = rf"{tmp_path}|\bnode\b|someone|pytest-of-{getpass.getuser()}"
    for file in out.iterdir():
        assert not re.search(private, file.read_text()), file
    said = "ran in fixtures/downstream and /tmp/pytest-of-USER on HOST of all nodes from ~/venv\n"
    said += "waiting for device UUID, which process 9 holds\n"
    assert (out / "matrix.txt").read_text() == said
    with tarfile.open(checkout / "gpu-report.tgz") as sent:
        assert {Path(name).name for name in sent.getnames()} == {
            "gpu-report",
            *(file.name for file in out.iterdir()),
        }
    asked = (tmp_path / "log").read_text().splitlines()
    on_the_gpu = [line for line in asked if "-device cuda" in line]
    assert len(on_the_gpu) == 4, asked  # the matrix and three benchmarks


def test_every_layout_of_the_package_is_trained_on_a_gpu() -> None:
    """A new one needs a cell in tests/gpu, which is skipped where there is no GPU."""
    signatures = {name: inspect.signature(getattr(layouts, name)) for name in layouts.__all__}
    built_in = {
        name for name, own in signatures.items() if [*own.parameters][:2] == ["workload", "cell"]
    }
    assert {*gpu_sides.AXES, *gpu_sides.OF_TRANSFORMER_ENGINE} == built_in


def test_the_page_names_what_is_added_to_a_container() -> None:
    """No more is installed there than what the page says."""
    [line] = [one for one in COMMAND.read_text().splitlines() if "install --quiet xxhash" in one]
    added = line.partition("--quiet ")[2].partition(" ||")[0].split()
    page = (ROOT / "docs" / "how-to" / "on-a-gpu.md").read_text()
    [told] = re.findall(r"adds the package, and ([^.]*?)\s+where they are missing", page)
    assert re.findall(r"[\w-]+", told.replace(" and ", " ")) == added


def table(summary: str) -> list[list[str]]:
    """Return the cells of each row of the table of the summary, without its head."""
    rows = [line[2:-2].split(" | ") for line in summary.splitlines() if line.startswith("| ")]
    return rows[2:]
