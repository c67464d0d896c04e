"""Models in wrappers, as frameworks make them."""

from __future__ import annotations

from typing import Any

import torch
import unchanged
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Wrapper(nn.Module):
    """Calls a model that it has under some name."""

    def __init__(self, name: str, model: nn.Module) -> None:
        super().__init__()
        self.name = name
        setattr(self, name, model)

    def forward(self, *inputs: Tensor) -> Any:
        return getattr(self, self.name)(*inputs)


class Fabric(Wrapper):
    """Keeps the model once more, without what it is wrapped in."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__("_forward_module", DistributedDataParallel(model))
        self._original_module = model


class Task(nn.Module):
    """Has a model and a loss, as a LightningModule does."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.net = model
        self.criterion = nn.MSELoss()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Any:
        return self.net(inputs)


WRAPPERS = {
    "ddp": DistributedDataParallel,
    "module": lambda model: Wrapper("module", model),
    "opacus": lambda model: Wrapper("_module", model),
    "fabric": Fabric,
    "compile": lambda model: torch.compile(model, backend="eager"),
    "task": Task,
    "unknown": lambda model: Wrapper("core", Wrapper("inner", model)),
    "all": lambda model: Fabric(Task(torch.compile(Wrapper("core", model), backend="eager"))),
}


def trained(wrap: Any, *, told: Any = None, late: bool = False) -> Any:
    """Make a script that trains a model in a wrapper.

    Args:
        wrap: makes the wrapper.
        told: makes what `record` is given of the model; nothing unless given.
        late: whether the wrapper is made in the block of `record()`.
    """

    def script(cell: Any, record: Any) -> None:
        model = unchanged.Net()
        loop = None if late else wrap(model)
        with record(*([told(model)] if told else [])):
            unchanged.run(unchanged.accumulating(wrap(model) if loop is None else loop, 9))

    return script
