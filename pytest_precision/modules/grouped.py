"""GroupedLinear: one linear layer per expert, over tokens sorted by expert."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index

import torch
from torch import Tensor, nn

from pytest_precision.errors import expected_but_got, named
from pytest_precision.modules.layer import Layer


class GroupedLinear(Layer):
    """One linear layer per expert, each of which multiplies the tokens of its expert.

    Attributes:
        weight0, weight1, ...: [out, in], one per expert, and bias0, bias1, ... [out] if the layer
            has biases.
        weight: [experts, out, in] instead, if there is a single grouped weight, and bias
            [experts, out].
    """

    def __init__(
        self,
        experts: int,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        precision: str,
        single_grouped_weight: bool = False,
        backend: str = "emulated",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make the layer with uninitialised parameters.

        Args:
            experts: number of experts.
            in_features: columns of each weight.
            out_features: rows of each weight.
            bias: whether each expert has a bias.
            precision: a quantized precision of cells, or bf16.
            single_grouped_weight: whether all weights are one parameter, and all biases another.
            backend: `native` has Transformer Engine quantize; the GEMMs stay the same.
            device: device of the parameters.
            dtype: dtype of the parameters.

        Raises:
            ValueError: the precision has no recipe, the backend is unknown, or there is no expert.
        """
        if experts < 1:
            raise ValueError(
                expected_but_got(
                    "at least one expert",
                    named("experts", experts),
                    "leave a layer without experts out",
                )
            )
        super().__init__()
        self.experts = experts
        self.in_features = in_features
        self.out_features = out_features
        self.single_grouped_weight = single_grouped_weight
        for kind, size in (("weight", (out_features, in_features)), ("bias", (out_features,))):
            if kind == "bias" and not bias:
                continue
            names = [kind] if single_grouped_weight else [f"{kind}{n}" for n in range(experts)]
            shape = (experts, *size) if single_grouped_weight else size
            for name in names:
                empty = torch.empty(shape, device=device, dtype=dtype)
                self.register_parameter(name, nn.Parameter(empty))
        self._start(precision, experts, next(self.parameters()).device, backend)

    def forward(self, x: Tensor, counts: Sequence[int]) -> Tensor:
        """Multiply each expert's tokens by the expert's weight.

        Args:
            x: [tokens, in], sorted by expert.
            counts: number of tokens per expert; an expert may have none.

        Returns:
            bf16 [tokens, out].

        Raises:
            ValueError: `x` has another shape, or `counts` is not one integer from 0 per expert with
                the number of tokens as the sum.
        """
        if x.shape[1:] != (self.in_features,):
            raise ValueError(
                expected_but_got(
                    f"x of shape [tokens, {self.in_features}]",
                    f"x.shape={tuple(x.shape)} (Size)",
                    "flatten the leading dimensions first",
                )
            )
        try:
            numbers = [index(count) for count in counts]
        except TypeError:  # not integers
            numbers = []
        if len(numbers) != self.experts or sum(numbers) != len(x) or min(numbers) < 0:
            raise ValueError(
                expected_but_got(
                    f"{self.experts} counts whose sum is {len(x)}",
                    named("counts", counts),
                    "count the tokens of idle experts as 0",
                )
            )
        return self._multiply(
            x,
            numbers,
            [*self.read("weight").values()],
            [*self.read("bias").values()],
            grouped=self.single_grouped_weight,
        )

    def read(self, kind: str) -> dict[str, Tensor]:
        """Return all weights, or all biases, of this layer as a dict from name to tensor.

        Args:
            kind: "weight" or "bias".
        """
        names = (
            [kind] if self.single_grouped_weight else [f"{kind}{n}" for n in range(self.experts)]
        )
        return {name: getattr(self, name) for name in names if name in self._parameters}
