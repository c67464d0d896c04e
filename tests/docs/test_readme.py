"""The README on a package index: its links lead to GitHub, to the files of the release."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest
from documents import ROOT

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
