"""`ci/test --quick` runs the tests of what has changed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def quick() -> ModuleType:
    """The module that chooses the tests."""
    spec = importlib.util.spec_from_file_location("quick", ROOT / "ci" / "quick.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("pytest_precision/matrix/selection.py", "tests/matrix/test_pairwise.py"),
        ("tests/slack.py", "tests/faults/test_flood.py"),
        ("fixtures/catalogue.py", "tests/check/test_catalogue.py"),
    ],
    ids=["its own import", "a helper", "a fixture"],
)
def test_what_imports_a_changed_module_runs(quick: ModuleType, changed: str, test: str) -> None:
    """Files that import a changed module, or a helper that does, are chosen, and not all files."""
    chosen = {*quick.importing([ROOT / changed])}
    assert ROOT / test in chosen
    assert len(chosen) < 200


def test_the_test_of_a_changed_module_runs_whole(quick: ModuleType) -> None:
    """The file with a module's name, and a changed test file, run with their slow tests."""
    changed = [
        ROOT / "pytest_precision/parity/compare/tensors.py",
        ROOT / "pytest_precision/commands/_arguments.py",
        ROOT / "tests/test_git.py",
    ]
    assert [str(path.relative_to(ROOT)) for path in quick.mirrored(changed)] == [
        "tests/parity/compare/test_tensors.py",
        "tests/test_git.py",
    ]


def test_modules_that_nobody_changed_choose_nothing(quick: ModuleType) -> None:
    """Documentation chooses no test by its imports."""
    assert quick.importing([ROOT / "README.md"]) == []
