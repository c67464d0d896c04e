"""GPT blocks made of Transformer Engine's layers, with three degrees of fusion.

All of them round at the same places: a linear layer whose output is added to the residual returns
its bias by itself, as it does in `TransformerLayer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pytest_precision.errors import expect_one_of, expected_but_got
from pytest_precision.layouts.transformer_engine.layers import (
    PADDED_ROWS,
    EngineLayer,
    Padded,
    expect_sizes,
    expect_some,
    primary_weights,
)
from pytest_precision.matrix.cell import Cell
from pytest_precision.workloads.language_model import GptBlock


class Fused(nn.Module):
    """A block of fused layers: norms inside the following linear layers, and one MLP layer."""

    def __init__(self, cell: Cell, block: GptBlock) -> None:
        super().__init__()
        engine = import_module("transformer_engine.pytorch")
        attention = block.attention
        options = _options(cell)
        width = block.down.out_features
        hidden = block.down.in_features
        self.qkv = engine.LayerNormLinear(
            width, attention.qkv.out_features, init_method=_values(attention.qkv), **options
        )
        self.core = _core(block)
        self.head_width = attention.head_width
        self.out = engine.Linear(
            width, width, init_method=_values(attention.out), return_bias=True, **options
        )
        self.mlp = engine.LayerNormMLP(
            width,
            hidden,
            init_method=_values(block.up),
            output_layer_init_method=_values(block.down),
            return_bias=True,
            **options,
        )

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        """Apply the block to hidden states [rows, length, width], and return the same shape."""
        first = {"is_first_microbatch": is_first_microbatch}
        output, bias = self.out(
            _attended_tensor(self.core, self.qkv(x, **first), self.head_width), **first
        )
        x = x + (output + bias)
        output, bias = self.mlp(x, **first)
        result: Tensor = x + (output + bias)
        return result


class Apart(nn.Module):
    """A transformer block in which each norm and each linear layer is a separate module."""

    def __init__(self, cell: Cell, block: GptBlock) -> None:
        super().__init__()
        engine = import_module("transformer_engine.pytorch")
        width = block.down.out_features
        attention = block.attention
        options = _options(cell)

        def linear(plain: nn.Linear, **more: Any) -> Any:
            return engine.Linear(
                plain.in_features,
                plain.out_features,
                init_method=_values(plain),
                **options,
                **more,
            )

        self.attention_norm = engine.LayerNorm(width, params_dtype=torch.bfloat16)
        self.qkv = linear(attention.qkv)
        self.core = _core(block)
        self.head_width = attention.head_width
        self.out = linear(attention.out, return_bias=True)
        self.norm = engine.LayerNorm(width, params_dtype=torch.bfloat16)
        self.up = linear(block.up)
        self.down = linear(block.down, return_bias=True)

    def forward(self, x: Tensor, is_first_microbatch: bool | None = None) -> Tensor:
        """Apply the block to hidden states [rows, length, width], and return the same shape."""
        first = {"is_first_microbatch": is_first_microbatch}
        mixed = self.qkv(self.attention_norm(x), **first)
        output, bias = self.out(_attended_tensor(self.core, mixed, self.head_width), **first)
        x = x + (output + bias)
        hidden = F.gelu(self.up(self.norm(x), **first), approximate="tanh")
        output, bias = self.down(hidden, **first)
        result: Tensor = x + (output + bias)
        return result


def whole_block(cell: Cell, block: GptBlock) -> nn.Module:
    """Make a Transformer Engine `TransformerLayer` with the weights of a GPT block."""
    engine = import_module("transformer_engine.pytorch")
    first = iter([block.attention.qkv, block.up])
    last = iter([block.attention.out, block.down])
    layer: nn.Module = engine.TransformerLayer(
        block.down.out_features,
        block.down.in_features,
        block.attention.heads,
        num_gqa_groups=1,
        kv_channels=block.attention.head_width,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        init_method=lambda weight: _values(next(first))(weight),
        output_layer_init_method=lambda weight: _values(next(last))(weight),
        fuse_qkv_params=True,
        qkv_weight_interleaved=False,
        attn_input_format="bshd",
        **_options(cell),
    )
    return layer


BLOCKS: dict[str, Callable[[Cell, GptBlock], nn.Module]] = {
    "TransformerLayer": whole_block,
    "LayerNormMLP": Fused,
    "Linear": Apart,
}
"""The largest layer of Transformer Engine in a block to what makes the block."""

_NORM = ("attention_norm.weight", "attention_norm.bias")
_SECOND_NORM = ("norm.weight", "norm.bias")
_QKV = ("attention.qkv.weight", "attention.qkv.bias")
_OUT = ("attention.out.weight", "attention.out.bias")
_MLP = ("up.weight", "up.bias", "down.weight", "down.bias")

_IN_NORM = ("layer_norm_weight", "layer_norm_bias")
_IN_LINEAR = ("weight", "bias")
_IN_MLP = ("fc1_weight", "fc1_bias", "fc2_weight", "fc2_bias")

_PARTS: dict[str, dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "TransformerLayer": {
        "self_attention.layernorm_qkv": (_IN_NORM + _IN_LINEAR, _NORM + _QKV),
        "self_attention.proj": (_IN_LINEAR, _OUT),
        "layernorm_mlp": (_IN_NORM + _IN_MLP, _SECOND_NORM + _MLP),
    },
    "LayerNormMLP": {
        "qkv": (_IN_NORM + _IN_LINEAR, _NORM + _QKV),
        "out": (_IN_LINEAR, _OUT),
        "mlp": (_IN_NORM + _IN_MLP, _SECOND_NORM + _MLP),
    },
    "Linear": {
        "qkv": (_IN_LINEAR, _QKV),
        "out": (_IN_LINEAR, _OUT),
        "up": (_IN_LINEAR, _MLP[:2]),
        "down": (_IN_LINEAR, _MLP[2:]),
    },
}
"""The modules in each form of a block: their parameters, and the names of these in `GptBlock`."""


class PaddedBlock(Padded):
    """A block that pads sequences at the end, where causal attention does not look."""

    def __init__(self, cell: Cell, name: str, block: GptBlock, layer: str) -> None:
        super().__init__()
        with primary_weights(cell):
            self.block = BLOCKS[layer](cell, block)
        self.parts = [
            EngineLayer(
                self.block.get_submodule(path),
                {te_name: (f"{name}.{of}",) for te_name, of in zip(*both, strict=True)},
            )
            for path, both in _PARTS[layer].items()
        ]
        plain = dict(_parameters(layer))
        self.logical = {f"block.{te_name}": (f"{name}.{of}",) for te_name, of in plain.items()}
        for te_name, of in plain.items():
            parameter = self.block.get_parameter(te_name)
            initial = block.get_parameter(of)
            parameter.requires_grad_(initial.requires_grad)
            if parameter.dim() == 1:
                parameter.data.copy_(initial.data)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block to hidden states [rows, length, width], and return the same shape."""
        length = x.shape[1]
        padded = F.pad(x, (0, 0, 0, -length % PADDED_ROWS))
        result: Tensor = self.block(padded, is_first_microbatch=self.first)
        return result[:, :length]


def with_blocks(model: nn.Module, cell: Cell, *, layer: str) -> nn.Module:
    """Replace each block of a model by Transformer Engine's layers, in place.

    Args:
        model: the model of `workloads.gpt`.
        cell: the layers store and accumulate as it says.
        layer: the largest layer in a block, a key of `BLOCKS`.

    Raises:
        ValueError: for a model without such blocks, or with sizes that are no multiples of 32.
    """
    expect_one_of("layer", layer, BLOCKS)
    named_blocks = [
        (name, block) for name, block in model.named_modules() if isinstance(block, GptBlock)
    ]
    for name, block in named_blocks:
        for path, module in block.named_modules():
            if isinstance(module, nn.Linear):
                expect_sizes(f"{name}.{path}", module)
        if isinstance(block.attention.temperature, nn.Parameter):
            raise ValueError(
                expected_but_got(
                    "attention with a fixed temperature",
                    f"a parameter in {name}",
                    "give workloads.gpt fixed_temperature=True",
                )
            )
        model.set_submodule(name, PaddedBlock(cell, name, block, layer))
    expect_some(named_blocks, model, "blocks of workloads.gpt")
    return model


def _parameters(layer: str) -> Iterator[tuple[str, str]]:
    """Yield each parameter's name in a Transformer Engine block, and in the original block."""
    for path, both in _PARTS[layer].items():
        yield from ((f"{path}.{te_name}", of) for te_name, of in zip(*both, strict=True))
    if layer == "Linear":  # whose norms are modules that cache and scale nothing
        yield from ((name, name) for name in _NORM + _SECOND_NORM)


def _options(cell: Cell) -> dict[str, Any]:
    return {
        "params_dtype": torch.bfloat16,
        "fuse_wgrad_accumulation": cell.grad_accum_fusion,
    }


def _values(plain_linear: nn.Linear) -> Callable[[Tensor], None]:
    @torch.no_grad()
    def initial(weight: Tensor) -> None:
        weight.copy_(plain_linear.weight)

    return initial


def _core(block: GptBlock) -> Any:
    engine = import_module("transformer_engine.pytorch")
    return engine.DotProductAttention(
        block.attention.heads,
        block.attention.head_width,
        num_gqa_groups=1,
        attention_dropout=0.0,
        qkv_format="bshd",
        attn_mask_type="causal",
    )


def _attended_tensor(core: Any, qkv: Tensor, head_width: int) -> Tensor:
    """Apply attention with several query heads and one key-value head, all in `qkv`."""
    rows, length, _ = qkv.shape
    heads = qkv.view(rows, length, -1, head_width)
    query, key, value = torch.split(heads, [heads.shape[2] - 2, 1, 1], dim=2)
    result: Tensor = core(query, key, value)
    return result
