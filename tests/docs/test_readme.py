"""The README on a package index: its links lead to GitHub, to the files of the release."""

from __future__ import annotations

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
from documents import PAGES, ROOT, blocks, named, prose

import pytest_precision

REVISION = f"v{pytest_precision.__version__}"
EXAMPLES = sorted((ROOT / "docs" / "examples").iterdir())


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


NAMES_A_RELEASE = re.compile(
    r"pip install [^`\n]*(?<=[\s/'\"])pytest-precision(?=[\s'\"@]|$)[^`\n]*"
    r"|uses: .*/pytest-precision/.*@v\d.*",
    re.MULTILINE,
)
"""A command that installs the package, or a step that uses it at a tag."""


def needs_a_release(text: str) -> list[str]:
    """Return the lines of a text that work only after a release, if no note is above them.

    Extras are not looked at: they find the package that is installed already.
    """
    noted = text.find("# As long as there is no release, write ")
    return [
        line[0]
        for line in NAMES_A_RELEASE.finditer(text)
        if "git+https://" not in line[0] and not 0 <= noted < line.start()
    ]


@pytest.mark.parametrize("page", [*PAGES, *EXAMPLES], ids=named)
def test_the_first_install_needs_no_release(page: Path) -> None:
    """It is from the repository; a workflow that names a release says what to write before it."""
    text = page.read_text()
    if page.suffix == ".md":  # an excerpt is in its file, which is looked at as a whole
        text = prose(page) + "".join(b.text for b in blocks(page) if not b.mark.startswith("in "))
    assert not needs_a_release(text)


def test_an_install_that_needs_a_release_is_found() -> None:
    """Each line by itself, in a workflow too; a note below it comes too late."""
    install = "- run: pip install --no-deps pytest-precision xxhash\n"
    use = "uses: pytest-precision/pytest-precision/.github/workflows/precision.yml@v0.1.0\n"
    sound = "pip install git+https://github.com/pytest-precision/pytest-precision\n"
    extra = "pip install 'pytest-precision[te-cpu]'\n"
    note = "# As long as there is no release, write a commit\n"
    assert len(needs_a_release(install + sound + use + extra + note)) == 2
    assert not needs_a_release(note + install + sound + use + extra)


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md", "docs/how-to/your-own-loop.md"])
def test_the_first_install_is_right_before_and_after_a_release(page: str) -> None:
    """It takes the repository that `pyproject.toml` names, which has the package either way."""
    source = re.search(r'^Source = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert source is not None
    installs = re.findall(r"pip install git\+([\w:/.-]+[\w])", (ROOT / page).read_text())
    assert installs
    assert {*installs} == {source[1]}
