"""A replacement of `nn.Linear` whose GEMMs multiply quantized operands."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from pytest_precision.errors import expected_but_got
from pytest_precision.modules.layer import Layer


class Linear(Layer, nn.Linear):
    """A linear layer that quantizes input, weight and output gradient by its precision's recipe."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        precision: str,
        backend: str = "emulated",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make the layer with parameters initialised as those of `nn.Linear`.

        Args:
            in_features: columns of the weight.
            out_features: rows of the weight.
            bias: whether the layer has a bias.
            precision: a quantized precision of cells, or bf16.
            backend: `native` has Transformer Engine quantize; the GEMMs stay the same.
            device: device of the parameters.
            dtype: dtype of the parameters.

        Raises:
            ValueError: the precision has no recipe, or the backend is unknown.
        """
        nn.Linear.__init__(self, in_features, out_features, bias, device, dtype)
        self._start(precision, 1, self.weight.device, backend)

    @classmethod
    def made_of(
        cls,
        linear: nn.Linear,
        precision: str,
        name: str,
        backend: str = "emulated",
    ) -> Linear:
        """Change the class of `linear` to this one in place and return it.

        Hooks and attributes stay.

        Args:
            linear: a module of class `nn.Linear` itself, not of a subclass.
            precision: as in the constructor.
            name: name of the module, also used as the name of its random bits.
            backend: as in the constructor.
        """
        layer = cast(Linear, linear)
        Layer._start(layer, precision, 1, linear.weight.device, backend)
        layer.__class__ = cls
        layer.streams = [name]
        return layer

    def forward(self, x: Tensor) -> Tensor:
        """Return y, bf16 [..., out], for x [..., in].

        Raises:
            ValueError: the last dimension of `x` is not `in_features`.
        """
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(
                expected_but_got(
                    f"x of shape [..., {self.in_features}]",
                    f"x.shape={tuple(x.shape)} (Size)",
                    "the last dimension must be as long as the rows of the weight",
                )
            )
        biases = [] if self.bias is None else [self.bias]
        rows = x.reshape(-1, self.in_features)
        result = self._multiply(rows, [len(rows)], [self.weight], biases, grouped=False)
        return result.view(*x.shape[:-1], self.out_features)
