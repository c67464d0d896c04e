"""A release: its tag, its notes, and what has to work before anything is published."""

from __future__ import annotations

import re
import shutil

import pytest
import yaml
from checks import ROOT, well
from runner import GITHUB, Runner

WORKFLOW = "release.yml"
UPLOAD, DOWNLOAD = "actions/upload-artifact", "actions/download-artifact"

CHANGELOG = """\
# Changelog

## Unreleased

- later

## 1.2.0 - 2026-11-30

### Added

- this

## 1.1.0 - 2026-10-01

- before
"""

WHEEL = "mkdir dist && touch dist/it-1.2.0.whl"


@pytest.fixture
def tagged(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """A checkout of a repository at the tag v1.2.0."""
    (runner.workspace / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (runner.workspace / "CHANGELOG.md").write_text(CHANGELOG)
    (runner.workspace / "ci").mkdir()
    shutil.copy(ROOT / "ci" / "release-notes", runner.workspace / "ci")
    command(runner, WHEEL)
    monkeypatch.setenv("GITHUB_REF_NAME", "v1.2.0")
    return runner


def command(runner: Runner, text: str) -> None:
    """Make this the command that builds and tries wheel and sdist."""
    file = runner.workspace / "ci" / "wheel"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


def test_a_release_is_built_with_its_notes(tagged: Runner) -> None:
    """They are its section of the changelog, and no other one."""
    assert tagged.job(WORKFLOW, "build")
    assert (tagged.workspace / "release-notes.md").read_text() == "\n### Added\n\n- this\n"
    ((_name, given),) = [one for one in tagged.used if one[0] == UPLOAD]
    paths = given["path"].split()
    assert paths == ["dist", "release-notes.md"]
    assert all((tagged.workspace / path).exists() for path in paths)


def test_a_tag_is_all_that_a_release_needs(tagged: Runner) -> None:
    """Without a section of its own it has what is unreleased, and nothing of an older release."""
    file = tagged.workspace / "CHANGELOG.md"
    file.write_text(CHANGELOG.replace("## 1.2.0 - 2026-11-30", "## 1.2.01 - 2026-11-30"))
    assert tagged.job(WORKFLOW, "build")
    assert (tagged.workspace / "release-notes.md").read_text() == "\n- later\n"


def test_a_fragment_that_is_left_is_refused(tagged: Runner) -> None:
    """What it says would be missing from the notes."""
    (tagged.workspace / "changelog.d").mkdir()
    (tagged.workspace / "changelog.d" / "7.added.md").write_text("A new option.\n")
    assert not tagged.job(WORKFLOW, "build")
    assert "expected no fragment in changelog.d but got changelog.d/7.added.md" in tagged.log


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("pyproject.toml", "1.2.0", "1.3.0", "expected the tag v1.3.0, the version in pyproject"),
        ("CHANGELOG.md", "1.2.0 - 2026-11-30", "1.2.0", "expected a section '## 1.2.0 - DATE'"),
        ("CHANGELOG.md", CHANGELOG, "# Changelog\n\n## Unreleased\n", "but got no text below"),
    ],
    ids=["another version", "no date", "no section"],
)
def test_a_wrong_tag_is_refused(
    tagged: Runner, file: str, old: str, new: str, message: str
) -> None:
    """Before anything is built."""
    changed = tagged.workspace / file
    changed.write_text(changed.read_text().replace(old, new))
    assert not tagged.job(WORKFLOW, "build")
    assert message in tagged.log
    assert not (tagged.workspace / "dist").exists()


def test_what_does_not_install_is_not_released(tagged: Runner) -> None:
    """There is nothing to publish then."""
    command(tagged, f"{WHEEL}; exit 1")
    assert not tagged.job(WORKFLOW, "build")
    assert UPLOAD not in dict(tagged.used)


def test_only_what_was_tried_is_published(runner: Runner) -> None:
    """Nothing is built again, and no token is given: the workflow itself is trusted."""
    assert runner.job(WORKFLOW, "publish")
    assert runner.used == [(DOWNLOAD, {"name": "release"}), ("pypa/gh-action-pypi-publish", {})]
    jobs = yaml.safe_load((GITHUB / "workflows" / WORKFLOW).read_text())["jobs"]
    assert jobs["publish"]["needs"] == "build"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "secrets" not in (GITHUB / "workflows" / WORKFLOW).read_text()


@pytest.mark.parametrize("status", [0, 1])
def test_the_release_has_a_page(tagged: Runner, status: int) -> None:
    """With the notes and the files; a page that was not made is seen."""
    (tagged.workspace / "dist").mkdir()
    (tagged.workspace / "dist" / "it.whl").touch()
    tagged.program("gh", f'echo "$@"; exit {status}')
    assert tagged.job(WORKFLOW, "page") is (status == 0)
    words = "release create v1.2.0 --verify-tag --title v1.2.0 --notes-file release-notes.md"
    assert tagged.log == f"{words} dist/it.whl\n"


def test_how_to_cite_is_valid() -> None:
    """By the schema of citation files, and of the version that the package has."""
    file = ROOT / "CITATION.cff"
    assert well("check-jsonschema", "--builtin-schema", "vendor.citation-file-format", file)
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert yaml.safe_load(file.read_text())["version"] == version[1]
