"""What installing the package asks for."""

from __future__ import annotations

import ast
import re
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from pytest_precision.plugin.supported import (
    LOWEST_PYTEST,
    NEWEST_TORCH,
    refuse_old_pytest,
    untested_torch,
)
from pytest_precision.revisions.installation import NEEDED

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # which pytest requires there

ROOT = Path(__file__).parents[1]

OF_A_CONTAINER = {"torch", "numpy", "pytest"}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def imported() -> set[str]:
    """The first names of all that the package imports."""
    found = set()
    for file in (ROOT / "pytest_precision").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
    return found


def test_nothing_is_required_that_is_not_imported(project: dict[str, Any]) -> None:
    """What only tests need is no business of those who install the package."""
    required = {Requirement(text).name for text in project["dependencies"]}
    assert required == {"pytest", "torch", "numpy", "xxhash", "safetensors", "jinja2"}
    assert required <= imported()


@pytest.mark.parametrize(
    ("package", "version"),
    [
        ("torch", "2.9.0a0+50eac811a6.nv25.09"),  # of a container of NVIDIA's, which pip keeps
        ("torch", "2.10.0a0+b4e4ee81d3.nv25.12"),
        ("torch", "2.9.0"),
        ("pytest", "8.1.1"),
    ],
)
def test_versions_that_must_do(project: dict[str, Any], package: str, version: str) -> None:
    """The oldest ones that are supported are not replaced by installing the package."""
    (requirement,) = [r for r in map(Requirement, project["dependencies"]) if r.name == package]
    assert requirement.specifier.contains(version)


@pytest.mark.parametrize(
    ("package", "version"), [("torch", "2.8.0a0+34c6371d24.nv25.08"), ("pytest", "8.1.0")]
)
def test_versions_that_will_not_do(project: dict[str, Any], package: str, version: str) -> None:
    """Pip replaces them, or says why it cannot."""
    (requirement,) = [r for r in map(Requirement, project["dependencies"]) if r.name == package]
    assert not requirement.specifier.contains(version)


def test_pytests_lowest_version_is_stated_alike(project: dict[str, Any]) -> None:
    """The plugin and the suites of the repository ask for the version that the package asks for."""
    (lowest,) = [text for text in project["dependencies"] if text.startswith("pytest>=")]
    assert f"pytest>={LOWEST_PYTEST}" == lowest
    for file in (ROOT / "pyproject.toml", ROOT / "fixtures" / "downstream" / "pyproject.toml"):
        options = tomllib.loads(file.read_text())["tool"]["pytest"]["ini_options"]
        assert f"pytest>={options['minversion']}" == lowest


@pytest.mark.parametrize("version", ["6.2.5", "7.4.4", "8.1.0"])
def test_a_pytest_that_is_too_old_is_refused(version: str) -> None:
    """Where pip was told to install without dependencies: by name, and not by a broken hook."""
    with pytest.raises(
        pytest.UsageError, match=rf"pytest 8\.1\.1 or later .* got {version}; pip inst"
    ):
        refuse_old_pytest(version)


@pytest.mark.parametrize("version", ["8.1.1", "8.10.0.dev3+g123", "9.0.0rc1", "10.0"])
def test_later_ones_are_not(version: str) -> None:
    """Numbers are compared, not words."""
    refuse_old_pytest(version)


def test_the_newest_torch_is_that_of_ci() -> None:
    """The header calls any later one newer than what is tested."""
    constraints = (ROOT / "ci" / "constraints.txt").read_text().splitlines()
    (pinned,) = [line for line in constraints if line.startswith("torch==")]
    assert pinned.startswith(f"torch=={NEWEST_TORCH}.")


@pytest.mark.parametrize(
    ("version", "newer"),
    [
        ("2.9.0a0+145a3a7bda.nv25.10", False),
        ("2.13.1+cu130", False),
        ("2.14.0", True),
        ("3.0", True),
    ],
)
def test_a_torch_that_nobody_has_tested_is_told(version: str, newer: bool) -> None:
    """With its release and the newest one that is tested."""
    told = [*untested_torch(version)]
    assert told == (
        [f"torch {version} is newer than 2.13, the newest that is tested"] if newer else []
    )


@pytest.mark.parametrize(
    "file",
    [
        *("README.md", "ci/gpu", "docs/examples/github-since.yml", "docs/troubleshooting.md"),
        *("docs/examples/github-workflow.yml", "docs/examples/gitlab-ci.yml"),
        "docs/how-to/ci-on-gpus.md",
    ],
)
def test_an_installation_without_dependencies_names_them(
    project: dict[str, Any], file: str
) -> None:
    """A container has torch, numpy and pytest; one more package is missing from no recipe."""
    lines = (ROOT / file).read_text().splitlines()
    # A sentence, or what is installed in addition, may end in the next line.
    told = [f"{one} {after}" for one, after in pairwise([*lines, ""]) if "--no-deps" in one]
    recipes = [set(re.findall(r"[\w-]+", text)) for text in told if "xxhash" in text]
    added = {Requirement(text).name for text in project["dependencies"]} - OF_A_CONTAINER
    assert recipes
    assert all(added <= words for words in recipes)


@pytest.mark.parametrize("page", ["upgrade-a-dependency.md", "compare-two-revisions.md"])
def test_what_another_installation_needs_is_named(page: str) -> None:
    """The package itself is put on its path, and says what it lacks."""
    lines = (ROOT / "docs" / "how-to" / page).read_text().splitlines()
    # The list may begin in the line before.
    told = [f"{before} {one}" for before, one in pairwise(lines) if "xxhash" in one]
    assert told
    assert all(set(NEEDED) <= set(re.findall(r"\w+", text)) for text in told)
