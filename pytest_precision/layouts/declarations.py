"""Decorators by which a layout, or any function for ranks, says which ranks it needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pytest_precision.errors import expected_but_got
from pytest_precision.matrix.variables import plain

F = TypeVar("F", bound=Callable[..., Any])


def with_environment(**variables: str) -> Callable[[F], F]:
    """Declare that a layout, or any function for ranks, needs these environment variables.

        @layouts.with_environment(NVTE_FLASH_ATTN="0", CUDA_DEVICE_MAX_CONNECTIONS="1")
        def megatron(workload, cell): ...

    Its ranks are processes of their own, whose interpreters start with these variables, and which
    are kept like any others. After a `swap` the other layout runs there too: its variables are
    added, as far as this one does not declare them. For a ready-made layout declare on a
    `functools.partial` of it, since the decorator writes on what it is given.

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


def fresh_ranks(function: F) -> F:
    """Declare that a layout, or any function for ranks, needs ranks that have run nothing.

        @layouts.fresh_ranks
        def patched(workload, cell): ...

    A group is opened for each of its jobs and closed after it: for code with state that no process
    can be asked for, such as a compiled extension's. For a ready-made layout declare on a
    `functools.partial` of it.
    """
    function.fresh_ranks = True  # type: ignore[attr-defined]
    return function


def may_leave(*patterns: str) -> Callable[[F], F]:
    """Declare what a layout, or any function for ranks, may leave changed in its process.

        @layouts.may_leave("environment variable MASTER_*", "torch.nn.functional.gelu")
        def framework(workload, cell): ...

    What matches is no leak. The changes stay on ranks that run nothing else, so only later jobs of
    the same layout find them.

    Args:
        patterns: of what a `PrecisionLeakWarning` names, the words before "was", with `*`, `?` and
            `[seq]` as `fnmatch` has them.

    Raises:
        TypeError: a pattern is not text.
    """
    for pattern in patterns:
        if not isinstance(pattern, str):
            raise TypeError(
                expected_but_got(
                    "patterns that are text",
                    f"{pattern!r} ({type(pattern).__name__})",
                    'write may_leave("environment variable NAME")',
                )
            )

    def declare(function: F) -> F:
        before: tuple[str, ...] = getattr(function, "may_leave", ())
        function.may_leave = (*before, *patterns)  # type: ignore[attr-defined]
        return function

    return declare
