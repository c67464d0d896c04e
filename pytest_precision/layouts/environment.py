"""with_environment: a layout says which variables must be set before torch starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pytest_precision.variables import plain

F = TypeVar("F", bound=Callable[..., Any])


def with_environment(**variables: str) -> Callable[[F], F]:
    """Declares that a layout, or any function for ranks, needs these environment variables.

        @layouts.with_environment(NVTE_FLASH_ATTN="0", CUDA_DEVICE_MAX_CONNECTIONS="1")
        def megatron(workload, cell): ...

    Its ranks are processes of their own, whose interpreters start with these variables, and which
    are kept like any others. For a ready-made layout declare on a `functools.partial` of it, since
    the decorator writes on what it is given.

    Args:
        variables: name to value.

    Raises:
        TypeError: a value is not text.
        ValueError: no process can have such a variable.
    """
    plain(variables)

    def declare(function: F) -> F:
        before: Mapping[str, str] = getattr(function, "environment", {})
        function.environment = {**before, **variables}  # type: ignore[attr-defined]
        return function

    return declare
