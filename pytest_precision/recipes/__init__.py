"""Recipes: how to record frameworks that keep flat partitions of parameters, and ask engines.

Each module of a trainer has a `locate` for `record(locate=...)`, and `on_cpu` where the framework
needs help there; each of an inference engine makes a side of `parity.score`. A recipe reads what a
framework keeps to itself, which holds for the releases that it was tested with. No framework is
imported here; import the module of yours.
"""

from __future__ import annotations

from importlib.metadata import version

from pytest_precision import _lazy
from pytest_precision.errors import expected_but_got

__getattr__, __dir__ = _lazy.exports(__name__, {}, open_to_others=True)  # its own are modules


def expect_release(package: str, *tested: str) -> None:
    """Raise RuntimeError unless the recipe was tested with the installed release of a framework.

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
