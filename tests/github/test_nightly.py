"""ci/nightly: every part runs, and one that failed is named and makes the whole red."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from checks import ROOT
from runner import GITHUB, Runner


@pytest.fixture
def nightly(tmp_path: Path) -> Path:
    """A copy of the script whose environment is there already."""
    (tmp_path / "ci").mkdir()
    (tmp_path / "ci" / "environment.sh").write_text('bin="$root"\n')
    copy = tmp_path / "ci" / "nightly"
    copy.write_text((ROOT / "ci" / "nightly").read_text())
    copy.chmod(0o755)
    return copy


def with_parts(script: Path, *parts: str) -> None:
    """Give a copy of the script other parts."""
    lines = "".join(f"    '{part}'\n" for part in parts)
    text, number = re.subn(
        r"(?ms)^parts=\(\n.*?^\)", lambda _: f"parts=(\n{lines})", script.read_text()
    )
    assert number == 1
    script.write_text(text)


def ended(script: Path, *arguments: str) -> tuple[int, str, str]:
    """Run the script and return its exit status and what it wrote."""
    run = subprocess.run([script, *arguments], capture_output=True, text=True)
    return run.returncode, run.stdout, run.stderr


def test_the_parts_after_one_that_failed_run_too(nightly: Path) -> None:
    """The exit status is 1 if any part failed, which is named, and the later ones have run."""
    with_parts(nightly, "one: echo first", "two: exit 3", "three: echo third")
    status, out, error = ended(nightly)
    assert (status, error) == (1, "failed: two\n")
    assert "first\n" in out
    assert "third\n" in out


def test_all_parts_that_passed_are_a_success(nightly: Path) -> None:
    """The exit status is 0 if no part failed."""
    with_parts(nightly, "one: echo first", "two: true")
    status, _, error = ended(nightly)
    assert (status, error) == (0, "")


def test_a_part_runs_alone_by_its_name(nightly: Path) -> None:
    """Arguments are names of parts; the others do not run."""
    with_parts(nightly, "one: echo first", "two: exit 3")
    status, out, _ = ended(nightly, "one")
    assert status == 0
    assert "first\n" in out


def test_an_unknown_part_is_refused_before_any_runs(nightly: Path) -> None:
    """Nothing is forwarded that the script does not understand, and nothing has run then."""
    with_parts(nightly, "one: echo first", "two: true")
    status, out, error = ended(nightly, "one", "--jobs")
    assert (status, out) == (2, "")
    assert error == "expected one of the parts one two but got '--jobs'; leave it out for all\n"


def test_what_the_parts_start_is_in_the_tree() -> None:
    """Every file that a part names exists, so that a rename does not end the nights silently."""
    block = re.search(r"(?ms)^parts=\(\n(.*?)^\)", (ROOT / "ci" / "nightly").read_text())
    assert block
    files = re.findall(r"\bci/[\w/.]+|\btests/[\w/.]+", block[1])
    assert files
    assert [file for file in files if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("status", [0, 1])
def test_the_job_is_the_command(runner: Runner, status: int) -> None:
    """The workflow runs what people run in their checkout, without arguments."""
    file = runner.workspace / "ci" / "nightly"
    file.parent.mkdir()
    file.write_text(f'#!/bin/sh\necho "$0 has $# arguments"; exit {status}\n')
    file.chmod(0o755)
    assert runner.job("nightly.yml", "nightly") is (status == 0)
    assert runner.log == "ci/nightly has 0 arguments\n"


def test_what_is_upcoming_has_jobs() -> None:
    """Each of nox's has one; that of torch's nightly build is skipped by name without an index."""
    (ahead,) = re.findall(r'parametrize\("ahead", (.+)\)', (ROOT / "noxfile.py").read_text())
    jobs = yaml.safe_load((GITHUB / "workflows" / "nightly.yml").read_text())["jobs"]
    upcoming, alone = jobs["upcoming"], jobs["torch-nightly"]
    assert {*upcoming["strategy"]["matrix"]["ahead"], "torch-nightly"} == {*yaml.safe_load(ahead)}
    assert alone["if"] == "vars.TORCH_NIGHTLY_INDEX != ''"
    assert "${{" not in alone["name"]
    assert "ahead='torch-nightly'" in alone["steps"][-1]["run"]
    assert "torch-nightly" not in upcoming["strategy"]["matrix"]["ahead"]
    assert all(job["continue-on-error"] for job in (upcoming, alone))
