"""Workflows: what GitHub would refuse, or an attacker could use, is found before they get there."""

from __future__ import annotations

from pathlib import Path

import pytest
from checks import ROOT, all_well, checks, well

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


@pytest.mark.slow
@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: str(file.relative_to(ROOT)))
def test_nothing_is_wrong_with_a_workflow(file: Path) -> None:
    """By its schema, by actionlint (with shellcheck for its scripts) and by zizmor."""
    assert checks(file, among=WORKFLOWS) == []


@pytest.mark.slow
def test_nothing_is_wrong_with_a_sound_one(tmp_path: Path) -> None:
    """What is changed below is sound as it is."""
    file = tmp_path / "workflow.yml"
    file.write_text(TEMPLATE.format(**SOUND))
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
    file.write_text(TEMPLATE.format(**SOUND | change))
    assert tool in checks(file)


def scripts() -> list[Path]:
    """The shell scripts that people, workflows and clusters start."""
    folders = [ROOT / "ci", ROOT / ".ci", *(ROOT / ".github" / "actions").iterdir()]
    files = [file for folder in folders for file in folder.iterdir() if file.is_file()]
    scripts = [file for file in files if file.read_text().startswith("#!/usr/bin/env bash")]
    return [*scripts, *(ROOT / "docs" / "examples").glob("*.sh")]


@pytest.mark.parametrize("script", scripts(), ids=lambda file: str(file.relative_to(ROOT)))
def test_shellcheck_finds_nothing_in_a_script(script: Path) -> None:
    """In what it sources neither."""
    tool = ("shellcheck", "-x", "-P", "SCRIPTDIR", "-P", ROOT)
    assert all_well(*tool, *sorted(scripts())) or well(*tool, script)
