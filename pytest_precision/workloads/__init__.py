"""Models with their data, loss and recipe: the same for candidate and reference of a check.

`mlp`, `gpt` and `moe` are classes. `parity.check` gets a class, which it calls without arguments,
or a `functools.partial` of a class with arguments. Names are resolved on first use, since
collection must not import torch.
"""

from typing import TYPE_CHECKING

from pytest_precision import _lazy

if TYPE_CHECKING:
    from pytest_precision.workloads import language_model, mixture, perceptron
    from pytest_precision.workloads.base import Workload

    gpt = language_model.Gpt
    mlp = perceptron.Mlp
    moe = mixture.Moe

__all__ = ["Workload", "gpt", "mlp", "moe"]

__getattr__, __dir__ = _lazy.exports(
    __name__,
    {
        "base": ("Workload",),
        "language_model": ("Gpt as gpt",),
        "mixture": ("Moe as moe",),
        "perceptron": ("Mlp as mlp",),
    },
    open_to_others=True,
)
