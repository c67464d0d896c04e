"""What a process may have set before the package runs, and what must change none of its bits.

The tests of a folder whose conftest imports these fixtures run twice: as torch starts, and in
surroundings that are foreign to the package. There autocast is on; and for what the package calls,
though not for the tests, the default dtype is bf16 and the default device is `meta`, which keeps no
values. So the tests state what they expect once, and a dtype or device that the package leaves to a
default shows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

READ = type(torch.Tensor.shape.__get__)
"""What reads an attribute of a tensor, which makes nothing that could follow a default."""

UNDER_TEST = tuple(f"pytest_precision.{part}." for part in ("formats", "modules", "optim"))


class ForeignDefaults(TorchFunctionMode):
    """The defaults that torch's functions see where the package calls them."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call `func` with these defaults, or with torch's own for any other caller."""
        if isinstance(func, READ):
            return func(*args, **(kwargs or {}))
        caller = sys._getframe(1).f_globals["__name__"]
        if not caller.startswith(UNDER_TEST):
            return func(*args, **(kwargs or {}))
        # What gets a tensor stays on its device.
        makes = not (args and isinstance(args[0], torch.Tensor))
        torch.set_default_dtype(torch.bfloat16)
        try:
            with torch.device("meta") if makes else nullcontext():
                return func(*args, **(kwargs or {}))
        finally:
            torch.set_default_dtype(torch.float32)


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """One thread, as in the ranks: small operations on several threads wait for busy cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


foreign_at_night = pytest.mark.parametrize(
    "surroundings",
    ["usual", pytest.param("foreign", marks=[pytest.mark.slow, pytest.mark.nightly])],
    indirect=True,
    scope="module",
)
"""The mark of a module that says by day only what holds of bits that other tests compare, in both
surroundings, with bits that were written down."""


@pytest.fixture(
    autouse=True, scope="module", params=["usual", pytest.param("foreign", marks=pytest.mark.slow)]
)
def surroundings(request: pytest.FixtureRequest) -> Iterator[None]:
    """The two surroundings."""
    if request.param == "usual":
        yield
    else:
        with torch.autocast("cpu", dtype=torch.bfloat16), ForeignDefaults():
            yield
