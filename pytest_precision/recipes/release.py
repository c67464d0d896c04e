"""Release: recipes read what frameworks keep to themselves, which holds for one release."""

from __future__ import annotations

from importlib.metadata import version

from pytest_precision.errors import expected_but_got


def expect_release(package: str, *tested: str) -> None:
    """Check which release of a framework is installed.

    Args:
        package: its name.
        tested: beginnings of the releases that the recipe was tested with.

    Raises:
        RuntimeError: it is another one.
    """
    installed = version(package)
    if not f"{installed}.".startswith(tuple(f"{release}." for release in tested)):
        raise RuntimeError(
            expected_but_got(
                f"{package} {' or '.join(tested)}, with which this recipe was tested,",
                f"{package} {installed}",
                "install that release, or write a `locate` of your own after this one",
            )
        )
