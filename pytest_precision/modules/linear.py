"""Linear: `nn.Linear` on quantized operands."""

from __future__ import annotations

import torch
from torch import Tensor, nn

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
        self._start(precision, 1, device, backend)

    @classmethod
    def around(
        cls,
        linear: nn.Linear,
        precision: str,
        name: str,
        backend: str = "emulated",
    ) -> Linear:
        """A layer with the parameters of another one.

        Args:
            linear: whose parameters are taken, not copied.
            precision: as in the constructor.
            name: of the module; names its random bits.
            backend: as in the constructor.
        """
        device = linear.weight.device
        made = cls(
            linear.in_features,
            linear.out_features,
            False,
            precision=precision,
            backend=backend,
            device=device,
        )
        made.weight = linear.weight
        made.bias = linear.bias
        made.streams = [name]
        made.train(linear.training)
        return made

    def forward(self, x: Tensor) -> Tensor:
        """Bf16 [..., out] of [..., in]."""
        biases = [] if self.bias is None else [self.bias]
        rows = x.reshape(-1, self.in_features)
        result = self._multiply(rows, [len(rows)], [self.weight], biases, grouped=False)
        return result.view(*x.shape[:-1], self.out_features)
