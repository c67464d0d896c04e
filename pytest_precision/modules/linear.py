"""Linear: `nn.Linear` on quantized operands."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from pytest_precision.errors import expected_but_got
from pytest_precision.modules.layer import Layer


class Linear(Layer, nn.Linear):
    """A linear layer that multiplies in the formats of a recipe, whatever dtype its input has."""

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
        """As `nn.Linear`.

        Args:
            in_features: columns of the weight.
            out_features: rows of the weight.
            bias: whether there is one.
            precision: of cells: a quantized one, or bf16.
            backend: `native` has Transformer Engine quantize; the GEMMs stay the same.
            device: of the parameters.
            dtype: of the parameters.

        Raises:
            ValueError: for a precision without a recipe.
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
        """`linear` itself, which becomes one of this class, so that hooks and attributes stay.

        Args:
            linear: of class `nn.Linear` itself.
            precision: as in the constructor.
            name: of the module; names its random bits.
            backend: as in the constructor.
        """
        made = cast(Linear, linear)
        Layer._start(made, precision, 1, linear.weight.device, backend)
        made.__class__ = cls
        made.streams = [name]
        return made

    def forward(self, x: Tensor) -> Tensor:
        """Bf16 [..., out] of [..., in].

        Raises:
            ValueError: another length of the last dimension.
        """
        if x.shape[-1:] != (self.in_features,):
            raise ValueError(
                expected_but_got(
                    f"x of shape [..., {self.in_features}]",
                    f"x.shape={tuple(x.shape)} (Size)",
                    "give it rows as long as those of the weight",
                )
            )
        biases = [] if self.bias is None else [self.bias]
        rows = x.reshape(-1, self.in_features)
        result = self._multiply(rows, [len(rows)], [self.weight], biases, grouped=False)
        return result.view(*x.shape[:-1], self.out_features)
