"""Convert environment variables to plain data.

Many are read once, when a library is loaded or CUDA starts: `CUBLAS_WORKSPACE_CONFIG`, `NVTE_*`,
`CUDA_DEVICE_MAX_CONNECTIONS`, `OMP_NUM_THREADS`. A layout would set them too late, so it declares
them in an attribute `environment`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pytest_precision.errors import expected_but_got, is_bad_input, named

__tracebackhide__ = is_bad_input

Variables = tuple[tuple[str, str], ...]
"""Names and values, sorted by name; this form can be compared and hashed."""


def plain_variables(variables: object, argument: str = "environment") -> Variables:
    """Convert a mapping of environment variables into sorted pairs, which can be hashed.

    Args:
        variables: the mapping.
        argument: what it was given as, for messages.

    Raises:
        TypeError: `variables` is not a mapping from text to text.
        ValueError: a process cannot have such a variable.
    """
    if not isinstance(variables, Mapping):
        raise TypeError(
            expected_but_got(
                "a mapping from variable to value",
                named(argument, variables),
                f'write {argument}={{"NAME": "value"}}',
            )
        )
    for name, value in variables.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(
                expected_but_got(
                    "environment variables that are text", named(name, value), f'write "{value}"'
                )
            )
        if not name or "=" in name or not (_fits(name) and _fits(value)):
            raise ValueError(
                expected_but_got(
                    "environment variables with a name without '=', and without null characters "
                    "or halves of surrogate pairs,",
                    f"{name!r}={value!r}",
                    "change the name or the value",
                )
            )
    return tuple(sorted(variables.items()))


def _fits(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
