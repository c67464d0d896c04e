"""Hook: calls a function at a user's module, and does nothing at copies of the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class ModuleHook:
    """Calls a function of ours before or after a module's forward.

    A deep copy of the module, such as an average of weights, or a pickle of it has this hook too:
    there it holds nothing, so that it neither copies what observes the module nor tells of the
    copy's calls.

    Args:
        call: takes what torch gives a hook; None does nothing.
    """

    def __init__(self, call: Callable[..., None] | None = None) -> None:
        self._call = call

    def __call__(self, *given: Any) -> None:
        """Call the function; a hook that returns None changes nothing."""
        if self._call is not None:
            self._call(*given)

    def __reduce__(self) -> tuple[type[ModuleHook], tuple[()]]:
        """Return what copies are made of, deep ones and pickles."""
        return ModuleHook, ()
