"""Models with their data, loss and recipe: the same for both sides of a check.

`mlp`, `gpt` and `moe` are classes: what `parity.check` gets is called without arguments, or is a
`functools.partial` with them. Names are resolved on first use, since collection must not import
torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_precision.workloads import language_model, mixture, perceptron
    from pytest_precision.workloads.base import Workload

    gpt = language_model.Gpt
    mlp = perceptron.Mlp
    moe = mixture.Moe

__all__ = ["Workload", "gpt", "mlp", "moe"]

_HOMES = {
    "Workload": ("base", "Workload"),
    "gpt": ("language_model", "Gpt"),
    "mlp": ("perceptron", "Mlp"),
    "moe": ("mixture", "Moe"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(
            f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}"
        )
    module, attribute = _HOMES[name]
    return getattr(import_module(f"{__name__}.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
