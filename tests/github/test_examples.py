"""What people copy: it is accepted by the service that it is for, and does what it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from checks import ROOT, checks, well

EXAMPLES = ROOT / "docs" / "examples"
PAGE = ROOT / "docs" / "how-to" / "ci-on-gpus.md"

REPOSITORY = "pytest-precision/pytest-precision/"

SUITE = """
import pytest

@pytest.mark.precision_matrix(precision=["fp32", "bf16"], sequence=["train1"])
def test_made_up(cell):
    pass
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with this one's workflows, in which it is its own example."""
    shutil.copytree(ROOT / ".github", tmp_path / ".github")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".github" / "actionlint.yaml").write_text("self-hosted-runner: {labels: [gpu]}")
    (tmp_path / "test_suite.py").write_text(SUITE)
    return tmp_path


def copied(project: Path, example: str, old: str = "", new: str = "") -> Path:
    """Put an example where its first line says, pinned as the page asks for."""
    text = (EXAMPLES / example).read_text().replace(old, new)
    file = project / text.splitlines()[0].removeprefix("# ")
    text = re.sub(rf"{REPOSITORY}(\S+)@v\S+", r"./\1", text)
    file.write_text(re.sub(r"@v\S+", "@" + 40 * "a", text))
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    "example", ["github-workflow.yml", "github-since.yml", "github-action.yml", "github-cpu.yml"]
)
def test_a_workflow_is_accepted(project: Path, example: str) -> None:
    """With inputs that the workflow, or the action, that it uses has."""
    assert checks(copied(project, example)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "old", "new"),
    [
        ("github-workflow.yml", "shards: 4", "shard: 4"),
        ("github-workflow.yml", "shards: 4", "shards: four"),
        ("github-action.yml", "minutes: 120", "hours: 2"),
    ],
)
def test_an_input_that_there_is_not_is_found(
    project: Path, example: str, old: str, new: str
) -> None:
    """Or one of another type."""
    assert checks(copied(project, example, old, new)) == ["actionlint"]


@pytest.mark.parametrize("example", ["github-workflow.yml", "github-cpu.yml"])
def test_twenty_lines_will_do(example: str) -> None:
    """They are on the page as they are in the file."""
    lines = (EXAMPLES / example).read_text()
    assert len(lines.splitlines()) <= 20
    assert lines in PAGE.read_text()


def test_what_is_new_is_one_job_more() -> None:
    """The longer workflow is the short one and a job, which the page shows as it is."""
    short, long = ((EXAMPLES / f"github-{n}.yml").read_text() for n in ("workflow", "since"))
    assert long.startswith(short)
    assert long.removeprefix(short) in PAGE.read_text()


def test_the_release_that_examples_name_is_this_one() -> None:
    """So that what is copied is what the page is about."""
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    for file in [PAGE, *EXAMPLES.glob("*.yml")]:
        named = set(re.findall(rf"{REPOSITORY}\S+@(\S+)", file.read_text()))
        assert named <= {f"v{version[1]}"}, file


@pytest.mark.slow
def test_gitlab_accepts_its_file() -> None:
    """By GitLab's own schema."""
    schema = ["--builtin-schema", "vendor.gitlab-ci"]
    assert well("check-jsonschema", *schema, EXAMPLES / "gitlab-ci.yml")


@pytest.mark.slow
def test_what_gitlab_would_not_accept_is_found(tmp_path: Path) -> None:
    """The schema knows jobs."""
    file = tmp_path / "gitlab-ci.yml"
    file.write_text((EXAMPLES / "gitlab-ci.yml").read_text().replace("parallel: 4", "parallel: no"))
    assert not well("check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", file)


def bash(project: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a repository, with the environment in which this test runs."""
    machine = {name: v for name, v in os.environ.items() if not name.startswith("PYTEST_")}
    programs = f"{Path(sys.executable).parent}:{machine['PATH']}"
    plugins = "-p no:cacheprovider -p no:hypothesispytest"
    own = {"PATH": programs, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": plugins}
    return subprocess.run(
        ["bash", "-eo", "pipefail", "-c", command],
        cwd=project,
        env=machine | own | environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.slow
def test_slurm_runs_a_shard_in_each_task(project: Path) -> None:
    """Its report has a folder of its own; arguments go to pytest."""
    task = {"SLURM_ARRAY_TASK_ID": "2", "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_JOB_ID": "7"}
    arguments = "--precision-device cpu test_suite.py"
    found = bash(project, f"{EXAMPLES / 'slurm.sh'} {arguments}", **task)
    assert "1 passed" in found.stdout
    assert (project / "precision-report/7/2/report.html").exists()


@pytest.mark.slow
def test_gitlab_shares_and_merges(project: Path) -> None:
    """Every command of the jobs but those that install, on the CPU and on these tests."""
    jobs = yaml.safe_load((EXAMPLES / "gitlab-ci.yml").read_text())
    for job, node in [("matrix", "1"), ("matrix", "2"), ("report", "")]:
        for line in jobs[job]["script"]:
            if "python" in line:
                command = line.replace("device cuda", "device cpu").replace("tests/precision", ".")
                found = bash(project, command, CI_NODE_INDEX=node, CI_NODE_TOTAL="2")
                assert found.returncode == 0, found.stdout + found.stderr
    assert "cells=2\n" in found.stdout
    for kind in ("matrix", "report"):
        for path in jobs[kind]["artifacts"]["paths"]:
            assert (project / path).exists()
    assert (project / jobs["matrix"]["artifacts"]["reports"]["junit"]).exists()
