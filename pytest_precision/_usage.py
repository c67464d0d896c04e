"""What is raised where a user has written something wrong."""

from __future__ import annotations


def usage_error() -> type[Exception]:
    """Return `pytest.UsageError`; import pytest only here, where an error is to be named.

    A command that ends well then starts without pytest.
    """
    import pytest

    return pytest.UsageError
