"""The README on a package index: its links lead to GitHub, to the files of the release."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from documents import PAGES, ROOT, named

import pytest_precision

REVISION = f"v{pytest_precision.__version__}"


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    """`setup.py`, as a module."""
    spec = spec_from_file_location("setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_links_are_absolute(setup: ModuleType) -> None:
    """A picture is served as it is; what is absolute already, and a heading of the page, stays."""
    written = "[![a](b/c.png)](d.html#e) [f](https://g) [h](#i)"
    raw, pages = "https://raw.githubusercontent.com", "https://github.com"
    repository = "pytest-precision/pytest-precision"
    assert setup.absolute(written, "v1.0") == (
        f"[![a]({raw}/{repository}/v1.0/b/c.png)]({pages}/{repository}/blob/v1.0/d.html#e) "
        "[f](https://g) [h](#i)"
    )


def test_no_link_of_the_readme_needs_its_folder(setup: ModuleType) -> None:
    """What follows the revision in a link is a file of the repository."""
    text = setup.absolute((ROOT / "README.md").read_text(), REVISION)
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    assert all(link.startswith(("https://", "#")) for link in links)
    ours = [
        link.partition(f"/{REVISION}/")[2].partition("#")[0] for link in links if REVISION in link
    ]
    assert len(ours) > 20
    assert all((ROOT / path).exists() for path in ours)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_first_install_needs_no_release(page: Path) -> None:
    """It is from a repository or a folder; extras find the package that is installed already.

    A workflow that names a release is for later: its page says what to write before there is one.
    """
    text = page.read_text()
    for line in re.findall(r"pip install [^`\n]*\bpytest-precision(?!\[)\b[^`\n]*", text):
        later = "As long as there is no release" in text
        assert re.search(r"git\+https://\S+|/path/to/", line) or later, line
