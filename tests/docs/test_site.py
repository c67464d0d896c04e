"""The site: all pages are in it, a wrong link ends its build, and each version has its folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents import ROOT

SAMPLE = ROOT / "docs" / "sample" / "report.html"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the site is built from, whose environment is there already."""
    for name in ("docs", "README.md", "pyproject.toml", "ci/docs", "ci/site"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (tmp_path / "ci" / "environment.sh").write_text(f'python="{sys.executable}"\n')
    # Links to files of the repository are followed too.
    for name in ("fixtures", "ci", ".github", "pytest_precision"):
        for file in (ROOT / name).rglob("*"):
            copy_of = tmp_path / file.relative_to(ROOT)
            if file.is_file() and not copy_of.exists() and "golden" not in file.parts:
                copy_of.parent.mkdir(parents=True, exist_ok=True)
                copy_of.symlink_to(file)
    return tmp_path


def built(tree: Path) -> subprocess.CompletedProcess[str]:
    """Run `ci/docs`."""
    return subprocess.run([tree / "ci" / "docs"], capture_output=True, text=True, timeout=200)


REPORT = "[this one](https://pytest-precision.github.io/pytest-precision/dev/sample/report.html)\n"

SMALL = {
    "index.md": f"# Documentation\n\n{REPORT}\n## Pages\n\n[a](limitations.md), "
    "[b](reference/axes.md), [c](reference/report.md)\n",
    "tutorial.md": "# Tutorial\n",
    "reference/axes.md": "# Axes\n\n## Sequences\n",
    "reference/report.md": f"# Report\n\n{REPORT}",
    "limitations.md": "# Limitations\n\n[a](reference/axes.md#sequences) [b](../ci/docs)\n",
}
"""Pages of a site that is built in a moment."""


def leave_few_pages(docs: Path) -> None:
    """Put the pages of a small site, and their list, in the place of all others."""
    for page in [*docs.rglob("*.md")]:
        page.unlink()
    for name, text in SMALL.items():
        (docs / name).write_text(text)
    home = "https://raw.githubusercontent.com/pytest-precision/pytest-precision/main/docs"
    (docs / "llms.txt").write_text("".join(f"- [a]({home}/{name})\n" for name in SMALL))


# What is built of few pages is built of all, whose links are followed in `test_links.py`.
@pytest.mark.slow
@pytest.mark.parametrize("pages", ["few", pytest.param("all", marks=pytest.mark.nightly)])
def test_the_site_has_every_page(tree: Path, pages: str) -> None:
    """And llms-full.txt has the text of each; no link is left that only the repository follows."""
    docs = tree / "docs"
    if pages == "few":
        leave_few_pages(docs)
    run = built(tree)
    assert run.returncode == 0, run.stderr
    site = tree / "build" / "site"
    full = (site / "llms-full.txt").read_text()
    for page in docs.rglob("*.md"):
        assert (site / page.relative_to(docs).with_suffix(".html")).exists()
        assert page.read_text() in full
    assert (site / "sample" / "report.html").read_bytes() == SAMPLE.read_bytes()
    assert 'href="sample/report.html"' in (site / "index.html").read_text()
    assert 'href="../sample/report.html"' in (site / "reference" / "report.html").read_text()
    dead = [
        (file.name, link)
        for file in site.rglob("*.html")
        for link in re.findall(r'href="([^"#:?]+)[#"?]', file.read_text())
        if not (file.parent / link).exists()
    ]
    assert not dead


@pytest.mark.slow
def test_wrong_links_end_the_build(tree: Path) -> None:
    """Each is named with its page, and nothing else is wrong there."""
    leave_few_pages(tree / "docs")
    wrong = ("reference/none.md", "reference/axes.md#none", "../ci/none")
    with (tree / "docs" / "limitations.md").open("a") as page:
        page.writelines(f"\n[a]({link})\n" for link in wrong)
    run = built(tree)
    assert run.returncode != 0
    assert len([line for line in run.stderr.splitlines() if "limitations.md" in line]) == len(wrong)
    assert run.stderr.count("WARNING") == len(wrong), run.stderr


def git(*arguments: str | Path, cwd: Path) -> str:
    """Run git and return what it says."""
    run = subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True)
    return run.stdout


@pytest.mark.slow
def test_each_version_has_its_folder(tmp_path: Path) -> None:
    """Main is `dev`, a tag its own folder and `latest`; the first comes without a branch."""
    origin, clone, site = (tmp_path / name for name in ("origin", "clone", "site"))
    git("init", "--bare", "-q", origin, cwd=tmp_path)
    git("clone", "-q", origin, clone, cwd=tmp_path)
    git(
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
        "commit",
        "-q",
        "--allow-empty",
        "-m",
        "x",
        cwd=clone,
    )
    site.mkdir()
    for revision in ("main", "v0.1.0", "v0.2.0", "v0.2.0"):
        (site / "index.html").write_text(revision)
        subprocess.run([ROOT / "ci" / "publish-site", site, revision], cwd=clone, check=True)

    def published(name: str) -> str:
        return git("show", f"gh-pages:{name}", cwd=origin)

    said = {name: published(f"{name}/index.html") for name in ("dev", "v0.1.0", "v0.2.0", "latest")}
    assert said == {"dev": "main", "v0.1.0": "v0.1.0", "v0.2.0": "v0.2.0", "latest": "v0.2.0"}
    assert "url=latest/" in published("index.html")
    assert all(f"href='{name}/'" in published("versions.html") for name in said)
    assert git("worktree", "list", cwd=clone).count("\n") == 1
