"""Where report.json and report.html are written, and how those of this package are told."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_precision._destination import MAKER, Destination, NotReplaceableError
from pytest_precision.errors import expected_but_got

if TYPE_CHECKING:
    import pytest

JSON_NAME = "report.json"
PAGE_NAME = "report.html"

_REPORT = re.compile(
    rb'\s*\{\s*"schema":\s*\d+,\s*"finished":\s*(true|false),\s*"(planned|environment)":'
)
"""How the report.json of every release begins; formatting it anew leaves that as it is."""

_GENERATOR = f'<meta name="generator" content="{MAKER}">'.encode()
"""What the head of every release's page has."""


def is_report(head: bytes) -> bool:
    """Return whether a file that begins so is a report.json of this package."""
    return _REPORT.match(head) is not None


def is_page(head: bytes) -> bool:
    """Return whether a file that begins so is a report.html of this package."""
    return (
        head.lstrip().startswith(b"<!doctype html>") and _GENERATOR in head.partition(b"<style")[0]
    )


def report_in(folder: Path, force: bool | None = None) -> Destination:
    """Return where a folder's report.json is written; for `force` see `Destination`."""
    return Destination(folder / JSON_NAME, is_report, force)


def page_in(folder: Path, force: bool | None = None) -> Destination:
    """Return where a folder's report.html is written; for `force` see `Destination`."""
    return Destination(folder / PAGE_NAME, is_page, force)


def expect_reports_free(folder: Path, option: str, force: bool | None = None) -> None:
    """Raise unless both files of a report can be written into a folder, as far as can be seen.

    Args:
        folder: where to; it may not exist yet.
        option: which named it, for the message.
        force: see `Destination`.

    Raises:
        pytest.UsageError: one of them is there and was made by another tool, or the folder is none.
    """
    try:
        for file in (report_in(folder, force), page_in(folder, force)):
            file.expect_free()
    except OSError as error:
        raise unusable(folder, option, error) from error


def unusable(folder: Path, option: str, error: OSError) -> pytest.UsageError:
    """Return the error that says why a report cannot be written into a folder."""
    import pytest  # only here, so that commands that end well start without it

    if isinstance(error, NotReplaceableError):
        return pytest.UsageError(f"{option}={folder}: {error}")
    expectation, got = "a folder that can be written to", f"{option}={folder}"
    got = f"{got} ({error.strerror or error})"
    return pytest.UsageError(expected_but_got(expectation, got, "name another folder"))
