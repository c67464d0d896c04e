"""What conda and docker make the package of says what `pyproject.toml` says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    pytest.skip("reads pyproject.toml with tomllib", allow_module_level=True)

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "ci" / "conda" / "recipe.yaml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

CONDA_NAMES = {"torch": "pytorch", "xxhash": "python-xxhash"}
"""Packages that conda-forge calls otherwise."""


def test_conda_takes_the_recipe() -> None:
    """The tool that builds it renders one package of this release."""
    build = pytest.importorskip("rattler_build", reason="needs py-rattler-build")
    (rendered,) = build.Stage0Recipe.from_file(RECIPE).render()
    assert (rendered.recipe.package.name, rendered.recipe.package.version) == (
        PROJECT["name"],
        PROJECT["version"],
    )


def test_the_recipe_needs_what_the_package_needs() -> None:
    """Each requirement with its lower bound, and the program."""
    recipe = yaml.safe_load(RECIPE.read_text())
    needed = [Requirement(text) for text in PROJECT["dependencies"]]
    expected = {
        f"{CONDA_NAMES.get(r.name, r.name)} {str(r.specifier).removesuffix('.0a0')}".strip()
        for r in needed
    } | {f"python {PROJECT['requires-python']}"}
    assert {*recipe["requirements"]["run"]} == expected
    (program,) = PROJECT["scripts"].items()
    assert recipe["build"]["python"]["entry_points"] == [" = ".join(program)]


def test_the_image_is_sound() -> None:
    """The linter finds nothing, and torch is the release that CI tests."""
    linter = Path(sys.executable).with_name("hadolint")
    subprocess.run([linter, ROOT / "Dockerfile"], check=True)
    pinned = re.search(r"torch==[\d.]+", (ROOT / "ci" / "constraints.txt").read_text())
    assert pinned is not None
    assert pinned[0] in (ROOT / "Dockerfile").read_text()
