"""Functions that make the comparison criteria of tests and of the `--criterion` option."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from inspect import Parameter, signature

from pytest_precision.errors import expected_but_got, is_bad_input, named
from pytest_precision.parity.compare.bounds import Bitwise, Close, Noise, Norm, Ulp, Unchecked
from pytest_precision.parity.compare.criterion import Criterion

__tracebackhide__ = is_bad_input


def bitwise(*, check_dtype: bool = True) -> Bitwise:
    """Require equal bytes in both tensors.

    With `check_dtype=False` the two may be stored in different floating dtypes, and the bytes are
    those of both after the exact upcast to float32, or float64 where one of them is.
    """
    return Bitwise(check_dtype=check_dtype)


def ulp(n: int, *, check_dtype: bool = True) -> Ulp:
    """Allow floating values to be at most `n` representable values apart.

    `check_dtype` works as in `bitwise`.
    """
    return Ulp(n, check_dtype=check_dtype)


def close(*, rtol: float, atol: float, check_dtype: bool = True) -> Close:
    """Allow `|candidate - reference| <= atol + rtol * |reference|` in each element.

    `check_dtype` works as in `bitwise`.

    Integers are compared exactly, and bools must be the same.
    """
    return Close(rtol, atol, check_dtype=check_dtype)


def norm(*, rel: float, check_dtype: bool = True) -> Norm:
    """Allow a relative L2 error of at most `rel` in each tensor.

    `check_dtype` works as in `bitwise`.

    This is the criterion for another order of summation: some elements, which nearly cancel, are
    then far off in relative terms, and no bound of elements fits both them and the others.
    """
    return Norm(rel, check_dtype=check_dtype)


def unchecked(*, reason: str) -> Unchecked:
    """Leave tensors out of the comparison; every report repeats the `reason`."""
    return Unchecked(reason)


def noise(*, runs: int = 5, safety: float = 6.0, check_dtype: bool = True) -> Noise:
    """Allow `safety` times the relative L2 error that rounding alone causes in the reference.

    `check_dtype` works as in `bitwise`.

    The error is measured: the reference is recorded `runs` more times with the results of its
    operations rounded at random, once for all checks of a session that name it.
    """
    return Noise(runs, safety, check_dtype=check_dtype)


CALLS: Mapping[str, Callable[..., Criterion]] = {
    call.__name__: call for call in (bitwise, ulp, close, norm, noise, unchecked)
}
"""Every function that makes a criterion, by its name."""


def no_criterion(name: str, argument: object) -> TypeError:
    """Return an error which says that `argument` is not a criterion, and how to make one."""
    *others, last = (f"{call}({', '.join(_required(CALLS[call]))})" for call in CALLS)
    advice = f"make one with {', '.join(others)} or {last}"
    return TypeError(expected_but_got("a criterion", named(name, argument), advice))


def _required(call: Callable[..., Criterion]) -> Iterator[str]:
    """Yield the required arguments of a function as in a call, such as `n` or `rtol=...`."""
    for name, parameter in signature(call).parameters.items():
        if parameter.default is Parameter.empty:
            yield f"{name}=..." if parameter.kind is Parameter.KEYWORD_ONLY else name


Write = Callable[[Mapping[str, str]], str]
"""From kind to call, such as `ulp(1)`, to what is written."""


def in_a_test(calls: Mapping[str, str]) -> str:
    """Format criteria as a test writes them: the argument `criterion=` of `parity.check`."""
    written = ", ".join(f'"{kind}": {call}' for kind, call in calls.items())
    return f"criterion={{{written}}}"


def on_the_command_line(calls: Mapping[str, str]) -> str:
    """Format criteria as command-line options of `python -m pytest_precision compare`."""
    return " ".join(f"--criterion {shlex.quote(f'{kind}={call}')}" for kind, call in calls.items())
