"""Digests that an engine computes in a process without this package are those of the package."""

from __future__ import annotations

import torch
import xxhash
from lora import with_adapters
from tiny_decoder import tiny

from pytest_precision.rollout import weight_snapshot


def digests(model: torch.nn.Module) -> dict[str, str]:
    """Return what a model holds, as `weights` of a Scorer take it."""
    weights = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        plain = tensor.detach().cpu().contiguous()
        data = plain.reshape(-1).view(torch.uint8).numpy()
        dtype = str(plain.dtype).removeprefix("torch.")
        weights[name] = f"{dtype} {[*plain.shape]} {xxhash.xxh3_128_hexdigest(data)}"
    return weights


def test_ten_lines_give_the_same_digests() -> None:
    """Of each parameter and of each buffer that is saved."""
    model = tiny(mixture=True)
    ours = weight_snapshot(model, digests=True)
    assert digests(model).items() <= ours.items()
    assert {*ours} - {*digests(model)} == {"rotary_emb.frequencies"}


def test_a_wrapped_weight_has_the_name_of_its_base() -> None:
    """So that an engine without adapters is compared with a trainer that has them."""
    weights = weight_snapshot(with_adapters(tiny()))
    assert "layers.0.self_attn.v_proj.weight" in weights
    assert float(weights["layers.0.self_attn.v_proj.lora_scaling.default"]) == 1.5
