"""How inference engines fuse the weights of common models: their names to those of Transformers.

A star stands for the same text on both sides; several names follow each other in dimension 0;
`{expert}` is the number of an expert, and the experts are stacked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FusedNames = Mapping[str, "str | Sequence[str]"]

LLAMA: FusedNames = {
    "*.qkv_proj.weight": ("*.q_proj.weight", "*.k_proj.weight", "*.v_proj.weight"),
    "*.qkv_proj.bias": ("*.q_proj.bias", "*.k_proj.bias", "*.v_proj.bias"),
    "*.gate_up_proj.weight": ("*.gate_proj.weight", "*.up_proj.weight"),
}
"""Llama, Qwen2 and Qwen3 as vLLM and SGLang hold them."""

QWEN_MOE: FusedNames = {
    "*.experts.w13_weight": (
        "*.experts.{expert}.gate_proj.weight",
        "*.experts.{expert}.up_proj.weight",
    ),
    "*.experts.w2_weight": "*.experts.{expert}.down_proj.weight",
    **LLAMA,
}
"""Qwen's mixtures, whose trainer holds each expert by itself."""

MIXTRAL: FusedNames = {
    "*.experts.w13_weight": ("*.experts.{expert}.w1.weight", "*.experts.{expert}.w3.weight"),
    "*.experts.w2_weight": "*.experts.{expert}.w2.weight",
    **LLAMA,
}
"""Mixtral, whose trainer holds each expert by itself."""

STACKED: FusedNames = {
    "*.experts.w13_weight": "*.experts.gate_up_proj",
    "*.experts.w2_weight": "*.experts.down_proj",
    **LLAMA,
}
"""Mixtures of Transformers from release 5 on, which holds experts stacked."""

FUSED_NAMES: Mapping[str, FusedNames] = {
    "llama": LLAMA,
    "qwen": LLAMA,
    "qwen_moe": QWEN_MOE,
    "mixtral": MIXTRAL,
    "stacked_moe": STACKED,
}
"""What `names=` of `parity.score` may be."""
