"""Variables: environment variables as plain data.

Many are read once, when a library is loaded or CUDA starts: `CUBLAS_WORKSPACE_CONFIG`, `NVTE_*`,
`CUDA_DEVICE_MAX_CONNECTIONS`, `OMP_NUM_THREADS`. A layout that set them itself would be too late,
so it says what it needs, in an attribute `environment`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from pytest_precision.errors import expected_but_got, named

Variables = tuple[tuple[str, str], ...]
"""Names and values, sorted by name: can be compared and hashed."""


def plain(variables: object) -> Variables:
    """A mapping from name to value as data that a cell or a run may hold.

    Raises:
        TypeError: it is no mapping from text to text.
        ValueError: no process can have such a variable.
    """
    if not isinstance(variables, Mapping):
        raise TypeError(
            expected_but_got(
                "a mapping from variable to value",
                named("environment", variables),
                'write environment={"NAME": "value"}',
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
                    "environment variables with a name, without '=' in it, and without null "
                    "characters and halves of surrogate pairs,",
                    f"{name!r}={value!r}",
                    "change it",
                )
            )
    return tuple(sorted(variables.items()))


def _fits(text: str) -> bool:
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False
