"""A linear layer with adapters, in the shape that PEFT gives them."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class LoraLinear(nn.Module):
    """A layer whose adapters are added to its result, each times a number of its own."""

    def __init__(self, base_layer: nn.Linear, names: tuple[str, ...] = ("default",)) -> None:
        super().__init__()
        self.base_layer = base_layer
        self.lora_A, self.lora_B = nn.ModuleDict(), nn.ModuleDict()
        self.scaling: dict[str, float] = {}
        self.active_adapters = [names[0]]
        self.merged = False
        generator = torch.Generator().manual_seed(2)
        for name in names:
            down = nn.Linear(base_layer.in_features, 4, bias=False)
            up = nn.Linear(4, base_layer.out_features, bias=False)
            with torch.no_grad():
                down.weight.normal_(0, 0.1, generator=generator)
                up.weight.normal_(0, 0.1, generator=generator)
            self.lora_A[name], self.lora_B[name] = down, up
            self.scaling[name] = 1.5
            self.lora_A[name].to(base_layer.weight.dtype)
            self.lora_B[name].to(base_layer.weight.dtype)

    def forward(self, x: Tensor) -> Tensor:
        result = self.base_layer(x)
        for name in () if self.merged else self.active_adapters:
            result = result + self.lora_B[name](self.lora_A[name](x)) * self.scaling[name]
        return result

    def merge(self) -> None:
        """Add the active adapters to the weight."""
        for name in self.active_adapters:
            self.base_layer.weight.data += self.delta(name)
        self.merged = True

    def unmerge(self) -> None:
        """Take the active adapters from the weight, which leaves what rounding has made of it."""
        for name in self.active_adapters:
            self.base_layer.weight.data -= self.delta(name)
        self.merged = False

    def delta(self, name: str = "default", scaling: float | None = None) -> Tensor:
        """Return what an adapter adds to the weight."""
        dtype = self.base_layer.weight.dtype
        product = self.lora_B[name].weight.float() @ self.lora_A[name].weight.float()
        return (product * (self.scaling[name] if scaling is None else scaling)).to(dtype)


def with_adapters(model: nn.Module, *names: str) -> nn.Module:
    """Give each projection of values in a model adapters of these names."""
    for layer in model.layers:
        layer.self_attn.v_proj = LoraLinear(layer.self_attn.v_proj, names or ("default",))
    return model


def merged_into(engine: nn.Module, trainer: nn.Module, **options: object) -> nn.Module:
    """Add the adapters of a trainer's model to the weights of an engine's."""
    with torch.no_grad():
        for ours, theirs in zip(engine.layers, trainer.layers, strict=True):
            delta = theirs.self_attn.v_proj.delta(**options)
            ours.self_attn.v_proj.weight.add_(delta.to(ours.self_attn.v_proj.weight.dtype))
    return engine
