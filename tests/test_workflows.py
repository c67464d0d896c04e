"""Workflows: what GitHub would refuse, or an attacker could use, is found before they get there."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github").rglob("*.y*ml"))

TEMPLATE = """\
on: {trigger}
permissions: {{ contents: read }}
jobs:
  {job}:
    runs-on: ubuntu-24.04
    steps:
      - run: echo {what}
"""

SOUND = {"trigger": "push", "job": "test", "what": "hello"}


def checks(file: Path) -> list[str]:
    """The names of the tools that find something in a workflow."""
    is_action = file.stem == "action"
    schema = "vendor.github-actions" if is_action else "vendor.github-workflows"
    commands = {
        "check-jsonschema": ["--builtin-schema", schema, str(file)],
        "zizmor": ["--offline", "--no-progress", "--min-severity", "medium", str(file)],
        "actionlint": [str(file)],
    }
    if is_action:
        del commands["actionlint"]  # it knows workflows only
    found = []
    for name, arguments in commands.items():
        program = shutil.which(name, path=str(Path(sys.executable).parent))
        assert program, f"{name} is missing: pip install -e .[dev]"
        if subprocess.run([program, *arguments], capture_output=True, cwd=ROOT).returncode:
            found.append(name)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: str(file.relative_to(ROOT)))
def test_nothing_is_wrong_with_a_workflow(file: Path) -> None:
    """By its schema, by actionlint (with shellcheck for its scripts) and by zizmor."""
    assert checks(file) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "tool"),
    [
        ({"trigger": "sometimes"}, "check-jsonschema"),
        ({"job": "'two words'"}, "actionlint"),
        ({"what": "${{ github.event.pull_request.title }}"}, "zizmor"),
    ],
    ids=["an unknown trigger", "a name that no job has", "a title that the shell runs"],
)
def test_what_is_wrong_is_found(tmp_path: Path, change: dict[str, str], tool: str) -> None:
    """Each tool finds what it is there for."""
    file = tmp_path / "workflow.yml"
    file.write_text(TEMPLATE.format(**SOUND))
    assert checks(file) == []
    file.write_text(TEMPLATE.format(**SOUND | change))
    assert tool in checks(file)


def scripts() -> list[str]:
    """The shell scripts that people and workflows start."""
    folders = [ROOT / "ci", ROOT / ".ci", *(ROOT / ".github" / "actions").iterdir()]
    files = [file for folder in folders for file in folder.iterdir() if file.is_file()]
    return [
        str(f.relative_to(ROOT)) for f in files if f.read_text().startswith("#!/usr/bin/env bash")
    ]


@pytest.mark.parametrize("script", scripts())
def test_shellcheck_finds_nothing_in_a_script(script: str) -> None:
    """In what it sources neither."""
    program = Path(sys.executable).with_name("shellcheck")
    paths = ["-P", "SCRIPTDIR", "-P", str(ROOT)]
    found = subprocess.run([program, "-x", *paths, script], capture_output=True, cwd=ROOT)
    assert (found.returncode, found.stdout.decode()) == (0, "")
