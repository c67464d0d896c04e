"""Give the package its README with absolute links: an index shows it without its files."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
REPOSITORY = "pytest-precision/pytest-precision"


def absolute(readme: str, revision: str) -> str:
    """Return a README whose relative links lead to the files of a revision on GitHub.

    A browser shows an image only from where GitHub serves files as they are.

    Args:
        readme: its text, in Markdown.
        revision: a tag or a branch.
    """
    raw = f"https://raw.githubusercontent.com/{REPOSITORY}/{revision}/"
    pages = f"https://github.com/{REPOSITORY}/blob/{revision}/"
    relative = r"\]\((?!\w+:|#)"
    readme = re.sub(rf"(!\[[^]]*){relative}", rf"\1]({raw}", readme)
    return re.sub(relative, f"]({pages}", readme)


if __name__ == "__main__":
    project = (ROOT / "pyproject.toml").read_text()
    (version,) = re.findall(r'^version = "(.*)"$', project, re.MULTILINE)
    setup(
        long_description=absolute((ROOT / "README.md").read_text(), f"v{version}"),
        long_description_content_type="text/markdown",
    )
