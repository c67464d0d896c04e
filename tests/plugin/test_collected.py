"""Which modules ranks import before a job: those that pytest imported to collect the test."""

from __future__ import annotations

import pytest

from pytest_precision.plugin.collected import collected_for

TEST = "def test_it(): pass\n"
NAMES = {
    "prepend": ["conftest", "conftest", "test_a"],
    "importlib": ["conftest", "a.conftest", "a.test_a"],
}


@pytest.mark.parametrize("mode", NAMES)
def test_conftests_that_apply_come_first_from_the_root_down(
    pytester: pytest.Pytester, mode: str
) -> None:
    """Under the names that pytest gave them; those of other folders and its plugins stay out."""
    pytester.makeconftest("")
    for folder in ("a", "b"):
        pytester.mkdir(folder)
        (pytester.path / folder / "conftest.py").write_text("", encoding="utf-8")
        (pytester.path / folder / f"test_{folder}.py").write_text(TEST, encoding="utf-8")
    (item, _), _ = pytester.inline_genitems("a", "b", f"--import-mode={mode}")
    found = collected_for(item)
    assert [path.module for path in found] == NAMES[mode]
    files = ["conftest.py", "a/conftest.py", "a/test_a.py"]
    assert [path.file for path in found] == [str(pytester.path / file) for file in files]


def test_a_package_and_plugins_of_the_user(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plugins of `-p` and `pytest_plugins` come when pytest imported them, modules by full name."""
    monkeypatch.syspath_prepend(pytester.path)
    pytester.makepyfile(planted_early="", planted_late="")
    pytester.mkpydir("tests_of_package")
    folder = pytester.path / "tests_of_package"
    (pytester.path / "conftest.py").write_text(
        "pytest_plugins = ['planted_late']\n", encoding="utf-8"
    )
    (folder / "conftest.py").write_text("", encoding="utf-8")
    (folder / "test_in_package.py").write_text(TEST, encoding="utf-8")
    (item,), _ = pytester.inline_genitems("-p", "planted_early", "tests_of_package")
    names = [path.module for path in collected_for(item)]
    package = ["tests_of_package.conftest", "tests_of_package.test_in_package"]
    assert names == ["planted_early", "conftest", "planted_late", *package]
