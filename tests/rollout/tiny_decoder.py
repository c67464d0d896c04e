"""A small decoder with the interface of Transformers: a mask, positions, a cache, logits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, silu

VOCABULARY = 64


class Output(NamedTuple):
    """What a forward gives back."""

    logits: Tensor
    past_key_values: KeyValues | None


@dataclass
class LayerKeys:
    """The keys and values of one layer, of shape [batch, heads, tokens, width]."""

    keys: Tensor
    values: Tensor


@dataclass
class KeyValues:
    """The keys and values of the tokens so far, of each layer."""

    layers: list[LayerKeys] = field(default_factory=list)

    def get_seq_length(self) -> int:
        """Return the number of tokens so far."""
        return self.layers[0].keys.shape[2] if self.layers else 0

    def extended(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Add the keys and values of a forward, and return all."""
        if layer == len(self.layers):
            self.layers.append(LayerKeys(keys, values))
            return keys, values
        held = self.layers[layer]
        held.keys, held.values = (
            torch.cat([held.keys, keys], 2),
            torch.cat([held.values, values], 2),
        )
        return held.keys, held.values


class Norm(nn.Module):
    """Root mean square norm, computed in fp32 unless told otherwise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.dtype = torch.float32

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(self.dtype)
        scale = (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
        return self.weight * (wide * scale).to(x.dtype)


class Rope(nn.Module):
    """Angles of rotary embeddings."""

    def __init__(self, width: int, base: float = 10000.0) -> None:
        super().__init__()
        frequencies = base ** (-torch.arange(0, width, 2).float() / width)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        angles = positions.unsqueeze(-1).float() * self.frequencies.float()
        return torch.cat([angles.cos(), angles.sin()], -1)


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotate halves of each head by the angles of its position."""
    cosine, sine = angles.to(x.dtype).unsqueeze(1).chunk(2, -1)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


class Attention(nn.Module):
    """Grouped-query attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.size = width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width // 2, bias=False)
        self.v_proj = nn.Linear(width, width // 2, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(
        self, x: Tensor, angles: Tensor, allowed: Tensor, cache: KeyValues | None, layer: int
    ) -> Tensor:
        rows, tokens, _ = x.shape
        queries, keys, values = (
            projection(x).view(rows, tokens, -1, self.size).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        queries, keys = rotated(queries, angles), rotated(keys, angles)
        if cache is not None:
            keys, values = cache.extended(layer, keys, values)
        keys, values = (side.repeat_interleave(2, 1) for side in (keys, values))
        scores = queries @ keys.transpose(-1, -2) / self.size**0.5
        scores = scores.masked_fill(~allowed.unsqueeze(1), -1e9)
        mixed = torch.softmax(scores.float(), -1).to(x.dtype) @ values
        return self.o_proj(mixed.transpose(1, 2).reshape(rows, tokens, -1))


class Feedforward(nn.Module):
    """A gated feedforward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, 2 * width, bias=False)
        self.up_proj = nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(silu(self.gate_proj(x)) * self.up_proj(x))


class Mixture(nn.Module):
    """Experts that each token chooses two of, with a bias that balances them."""

    def __init__(self, width: int, experts: int = 4) -> None:
        super().__init__()
        self.top_k = 2
        self.gate = nn.Linear(width, experts, bias=False)
        self.register_buffer("balance", torch.zeros(experts))
        self.up = nn.Parameter(torch.randn(experts, width, width) * 0.1)
        self.down = nn.Parameter(torch.randn(experts, width, width) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.gate(x).float() + self.balance
        weights, experts = torch.softmax(logits, -1).topk(self.top_k)
        mixed = torch.zeros_like(x)
        for expert in range(len(self.up)):
            share = (weights * (experts == expert)).sum(-1, keepdim=True).to(x.dtype)
            mixed = mixed + share * linear(silu(linear(x, self.up[expert])), self.down[expert])
        return mixed


class Block(nn.Module):
    """One layer."""

    def __init__(self, width: int, mixture: bool) -> None:
        super().__init__()
        self.input_layernorm = Norm(width)
        self.self_attn = Attention(width, 4)
        self.post_attention_layernorm = Norm(width)
        self.mlp = Mixture(width) if mixture else Feedforward(width)

    def forward(
        self, x: Tensor, angles: Tensor, allowed: Tensor, cache: KeyValues | None, layer: int
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), angles, allowed, cache, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class TinyDecoder(nn.Module):
    """A decoder of a few layers, whose weights are those of a seed."""

    def __init__(self, mixture: bool = False, absolute: bool = False) -> None:
        super().__init__()
        layers, width = 2, 32
        generator = torch.random.get_rng_state()
        torch.manual_seed(0)
        self.embed_tokens = nn.Embedding(VOCABULARY, width)
        self.rotary_emb = Rope(width // 4)
        self.layers = nn.ModuleList(Block(width, mixture) for _ in range(layers))
        self.norm = Norm(width)
        self.lm_head = nn.Linear(width, VOCABULARY, bias=False)
        self.embed_positions = nn.Embedding(64, width) if absolute else None
        torch.random.set_rng_state(generator)
        self.shift = 0

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: KeyValues | None = None,
        use_cache: bool = False,
        **_: object,
    ) -> Output:
        rows, tokens = input_ids.shape
        cache = past_key_values or (KeyValues() if use_cache else None)
        past = cache.get_seq_length() if cache is not None else 0
        columns = torch.arange(past, past + tokens)
        positions = columns.expand(rows, tokens) if position_ids is None else position_ids
        allowed = columns.unsqueeze(-1) + self.shift >= torch.arange(past + tokens)
        allowed = allowed.expand(rows, tokens, past + tokens)
        if attention_mask is not None:
            allowed = allowed & (attention_mask != 0).unsqueeze(1)
        elif cache is None:
            segments = (positions == 0).cumsum(-1)
            allowed = allowed & (segments.unsqueeze(-1) == segments.unsqueeze(1))
        x = self.embed_tokens(input_ids)
        if self.embed_positions is not None:
            x = x + self.embed_positions(positions)
        angles = self.rotary_emb(positions)
        for number, layer in enumerate(self.layers):
            x = layer(x, angles, allowed, cache, number)
        return Output(self.lm_head(self.norm(x)), cache)


def tiny(
    dtype: torch.dtype = torch.bfloat16,
    *,
    mixture: bool = False,
    tied: bool = False,
    absolute: bool = False,
) -> TinyDecoder:
    """Return a decoder of a dtype, with weights as large as those of a trained one."""
    model = TinyDecoder(mixture, absolute)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(2)
    if tied:
        model.lm_head.weight = model.embed_tokens.weight
    return model.to(dtype)


def sequences(*lengths: int) -> list[Tensor]:
    """Return sequences of random ids, each of one of the lengths."""
    generator = torch.Generator().manual_seed(1)
    lengths = lengths or (11, 14, 9)
    return [torch.randint(0, VOCABULARY, (n,), generator=generator) for n in lengths]
