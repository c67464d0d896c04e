"""The site: Sphinx builds it from the pages in docs/, which are written for GitHub.

`index.md` is the table of contents: what it links to under a heading is one part of the sidebar.
Links that leave docs/ lead to GitHub.

The builder is Sphinx with furo and MyST, rather than mkdocs, since MyST reads the pages in GitHub's
Markdown, and Sphinx itself has search, the check of links to other sites, and a warning for each
wrong link or heading, at which `ci/docs` fails. No tool for versions is needed: `ci/publish-site`
puts each version into a folder of its own.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[2]
SITE = "https://pytest-precision.github.io/pytest-precision/"
SAMPLE = "sample/report.html"
FILES = "https://github.com/pytest-precision/pytest-precision/blob/main/"

project = "pytest-precision"
copyright = "the pytest-precision developers"
(release,) = re.findall(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
extensions = ["myst_parser"]
exclude_patterns = ["sample"]  # ci/docs copies it as it is
html_extra_path = [str(ROOT / "docs" / "llms.txt")]
html_theme = "furo"
html_title = f"pytest-precision {os.environ.get('SITE_VERSION', release)}"
html_theme_options = {
    "announcement": f"<a href='{SITE}versions.html'>other versions</a>",
    "source_repository": "https://github.com/pytest-precision/pytest-precision/",
    "source_branch": "main",
    "source_directory": "docs/",
}
myst_heading_anchors = 4


def add_contents(text: str) -> str:
    """Return the index with a hidden table of contents for each of its headings."""
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        pages = "\n".join(re.findall(r"\]\(([\w/-]+\.md)\)", body))
        text += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{pages}\n```\n"
    return text + "\n```{toctree}\n:hidden:\n\ntutorial.md\n```\n"


def adapt(app: Sphinx, page: str, source: list[str]) -> None:
    """Lead links to pages outside docs/ to GitHub, and give the index its tables of contents.

    The sample report is that of the same version. Its link is HTML, since Sphinx would offer a
    file that is no page as a download.
    """
    up = page.count("/") + 1
    source[0] = re.sub(rf"\]\((?:\.\./){{{up}}}([\w./-]+\.md)", rf"]({FILES}\1", source[0])
    link = f'<a href="{"../" * (up - 1)}{SAMPLE}">'
    source[0] = re.sub(rf"\[([^]]+)\]\({SITE}dev/{SAMPLE}\)", rf"{link}\1</a>", source[0])
    if page == "index":
        source[0] = add_contents(source[0])


def setup(app: Sphinx) -> None:
    """Register what is done to a page before it is parsed."""
    app.connect("source-read", adapt)
