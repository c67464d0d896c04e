"""Decorators that declare what a layout, or another function run on ranks, needs of its ranks."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from pytest_precision.errors import expected_but_got, named
from pytest_precision.matrix.declared import declares_pure
from pytest_precision.matrix.variables import plain_variables
from pytest_precision.options.option_values import unclosed
from pytest_precision.ranks.te_stand_in import stand_in

Declaring = TypeVar("Declaring", bound=Callable[..., Any])

_INSIDE = ContextVar("called by a function that uses Transformer Engine", default=False)


def with_environment(**variables: str) -> Callable[[Declaring], Declaring]:
    """Declare the environment variables that the processes of a layout or function need.

        @layouts.with_environment(NVTE_FLASH_ATTN="0", CUDA_DEVICE_MAX_CONNECTIONS="1")
        def megatron(workload, cell): ...

    Its ranks run in processes of their own, whose interpreters start with these variables; like
    others, they are kept between jobs. After a `swap` the other layout runs there too: those of its
    variables are added that this one does not declare. To declare variables for a ready-made
    layout, decorate a `functools.partial` of it, since the decorator sets an attribute.

    Args:
        variables: name to value.

    Raises:
        TypeError: a value is not text.
        ValueError: no process can have such a variable.
    """
    plain_variables(variables)

    def declare(function: Declaring) -> Declaring:
        before: Mapping[str, str] = getattr(function, "environment", {})
        function.environment = {**before, **variables}  # type: ignore[attr-defined]
        return function

    return declare


def fresh_ranks(function: Declaring) -> Declaring:
    """Declare that a layout or function must run in processes that have run nothing before.

        @layouts.fresh_ranks
        def patched(workload, cell): ...

    A group is started for each of its jobs and closed after it. This is for code with state that
    cannot be inspected, such as that of a compiled extension. For a ready-made layout, decorate a
    `functools.partial` of it.
    """
    function.fresh_ranks = True  # type: ignore[attr-defined]
    return function


def pure(function: Declaring) -> Declaring:
    """Promise that a layout, workload or script depends on its arguments and its cell alone.

        @layouts.pure
        def mine(workload, cell): ...

    A reference is kept for later checks, and so are ranks with code of yours, only where each part
    of the side promises it: the layout, the other side's after a `swap`, and the workload. This
    package's own do so by themselves, with arguments that are plain data. Do not promise it of what
    reads a file, a variable that changes, a server or the clock: later checks would compare with
    what it read before. The ini key `precision_pure` promises it for all tests.

    A class that inherits from one with this promise, and a function that wraps one, need their own.
    For a ready-made layout with a function of yours, decorate a `functools.partial` of it.

    Raises:
        TypeError: it cannot be called.
    """
    untyped: object = function
    if not callable(untyped):
        advice = "write @layouts.pure above a function or a class"
        raise TypeError(
            expected_but_got(
                "a layout, a workload or a script", named("function", function), advice
            )
        )
    # The function itself, since `functools.wraps` and classes hand attributes on.
    function.declared_pure = function  # type: ignore[attr-defined]
    return function


def may_leave(*patterns: str) -> Callable[[Declaring], Declaring]:
    """Declare which process-wide state a layout or function may leave changed.

        @layouts.may_leave("environment variable MASTER_*", "torch.nn.functional.gelu")
        def framework(workload, cell): ...

    A change that matches is no leak. The changes stay on ranks that run nothing else, so only later
    jobs of the same layout see them.

    Args:
        patterns: patterns of the words before "was" in a `PrecisionLeakWarning`; `*`, `?` and
            `[seq]` mean what they mean in `fnmatch`.

    Raises:
        TypeError: a pattern is not text.
        ValueError: it is empty, or a bracket in it is not closed.
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
        if not pattern:
            advice = "write the words that the PrecisionLeakWarning has before 'was'"
            raise ValueError(expected_but_got("patterns that are not empty", "''", advice))
        if unclosed(pattern):
            raise ValueError(
                expected_but_got(
                    "patterns whose brackets are closed", repr(pattern), "write [[] for a bracket"
                )
            )

    def declare(function: Declaring) -> Declaring:
        before: tuple[str, ...] = getattr(function, "may_leave", ())
        function.may_leave = (*before, *patterns)  # type: ignore[attr-defined]
        return function

    return declare


def uses_transformer_engine(function: Declaring) -> Declaring:
    """Declare that a layout or function uses Transformer Engine, or its stand-in on the CPU.

        @layouts.uses_transformer_engine
        def mine(workload, cell):
            import transformer_engine.pytorch as te
            ...

    On a GPU nothing changes. On the CPU its ranks get the stand-in for Transformer Engine's kernels
    before the function is called. From then on torch calls the CPU `cuda` there, so they run only
    what declares the same. Where the stand-in cannot run, the test is skipped; see
    `--precision-te`. Import Transformer Engine in the function: a module that imports it at its top
    cannot be collected without a GPU. State that Transformer Engine's layers of earlier jobs left
    in the process is reset before the outermost such function runs, and not before inner ones.
    """

    @functools.wraps(function)
    def installed(*args: Any, **kwargs: Any) -> Any:
        stand_in().install_without_gpu()
        with _without_earlier_layers():
            return function(*args, **kwargs)

    installed.transformer_engine = True  # type: ignore[attr-defined]
    if declares_pure(function):
        pure(installed)
    return may_leave(*stand_in().CHANGES)(cast(Declaring, installed))


@contextmanager
def _without_earlier_layers() -> Iterator[None]:
    """Clear, before a `with` block, global fp8 state left by Transformer Engine in earlier jobs.

    In delayed scaling, the histories of all layers that were ever called are updated together, and
    what is recomputed is numbered over all of them: each job would take longer than the one before,
    and differ from its repetition. A layer that was called before is never updated again, so that
    nothing is taken back between a layer's first call and the end of the function that makes it.
    """
    module = sys.modules.get("transformer_engine.pytorch.quantization")
    if module is not None and not _INSIDE.get():
        module.FP8GlobalStateManager.reset()
    token = _INSIDE.set(True)
    try:
        yield
    finally:
        _INSIDE.reset(token)
