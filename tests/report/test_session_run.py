"""What a report says of its session: when, which commit, which branch, whether files changed."""

from __future__ import annotations

import subprocess
from datetime import datetime, timezone
from pathlib import Path

import pytest

from pytest_precision.report.provenance import BRANCH_VARIABLES, session_run


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit on the branch `topic`."""
    for name in BRANCH_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "a.py").write_text("1\n")
    who = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (["init", "-q", "-b", "topic"], ["add", "."], [*who, "commit", "-qm", "one"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    return tmp_path


def test_a_clean_checkout(checkout: Path) -> None:
    """Its commit and branch, the date in UTC, and no name of the machine."""
    found = session_run(checkout)
    date = datetime.fromisoformat(found.pop("date"))
    assert abs((datetime.now(timezone.utc) - date).total_seconds()) < 3600
    words = ["git", "rev-parse", "HEAD"]
    commit = subprocess.check_output(words, cwd=checkout, text=True).strip()
    assert found == {"commit": commit, "branch": "topic", "dirty": False}


def test_a_changed_file(checkout: Path) -> None:
    """A result of it is not that of the commit; a file that git does not track changes nothing."""
    (checkout / "b.py").write_text("1\n")
    assert session_run(checkout)["dirty"] is False
    (checkout / "a.py").write_text("2\n")
    assert session_run(checkout)["dirty"] is True


def test_a_commit_without_branch_as_in_ci(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CI says the branch, where its checkout has none."""
    subprocess.run(["git", "checkout", "-q", "--detach"], cwd=checkout, check=True)
    assert "branch" not in session_run(checkout)
    monkeypatch.setenv("GITHUB_REF_NAME", "main")
    assert session_run(checkout)["branch"] == "main"


def test_no_repository(tmp_path: Path) -> None:
    """Then there is the date, and the machine only for who asks."""
    assert [*session_run(tmp_path)] == ["date"]
    assert [*session_run(None, host=True)] == ["date", "host"]
