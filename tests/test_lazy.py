"""Names of a package that are imported when first used."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_precision import _lazy, layouts, recipes, workloads


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
