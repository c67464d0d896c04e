"""Names of a package that are imported when first used, and what becomes of renamed ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_precision import RankError, _lazy, layouts, recipes, workloads


def test_an_old_name_works_and_names_the_new_form() -> None:
    """The warning is at the line that uses it; whoever lists names sees the new one alone."""
    homes = {"errors": ("RankError",)}
    found, names = _lazy.exports("pytest_precision", homes, {"RankFailure": "RankError"})
    words = (
        r"^pytest_precision\.RankFailure will be removed in the next minor version; "
        r"write pytest_precision\.RankError$"
    )
    with pytest.warns(DeprecationWarning, match=words) as told:
        assert found("RankFailure") is RankError
    assert told[0].filename == __file__
    assert found("RankError") is RankError
    assert len(told) == 1
    assert names() == ["RankError"]
    with pytest.raises(AttributeError, match="has no attribute 'RankFailures'; it has RankError"):
        found("RankFailures")


def test_installed_packages_add_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By entry points whose group is the package; a name of its own is nobody else's."""
    (tmp_path / "of_others.py").write_text("def zero3(workload, cell): ...\nmine = 1\n")
    folder = tmp_path / "of_others-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: of-others\nVersion: 1\n")
    groups = {"layouts": ("zero3", "adamw"), "workloads": ("mine",), "recipes": ("mine",)}
    (folder / "entry_points.txt").write_text(
        "".join(
            f"[pytest_precision.{group}]\n"
            + "".join(f"{name} = of_others:zero3\n" for name in names)
            for group, names in groups.items()
        )
    )
    before = layouts.adamw
    monkeypatch.syspath_prepend(tmp_path)
    assert layouts.zero3 is workloads.mine is recipes.mine
    assert layouts.zero3.__name__ == "zero3"
    assert layouts.adamw is before
    assert "zero3" in dir(layouts)
    with pytest.raises(AttributeError, match=r"no attribute 'zero2'; it has .*, zero3"):
        layouts.zero2  # noqa: B018


def test_private_names_are_not_looked_for_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest asks a module for many of them, and to read what is installed takes milliseconds."""

    def read(**_: str) -> None:
        pytest.fail("the metadata of installed packages were read")

    monkeypatch.setattr(_lazy, "entry_points", read)
    with pytest.raises(AttributeError, match=r"no attribute '__wrapped__'; it has adamw, "):
        layouts.__wrapped__  # noqa: B018
