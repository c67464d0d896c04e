"""Digests that an engine computes in a process without this package are those of the package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from lora import with_adapters
from tiny_decoder import tiny

from pytest_precision.rollout import weight_snapshot
from pytest_precision.rollout.inference_weights import weight_digest


def mixed(counter: Any) -> Any:
    number = (np.uint64(1) + counter.astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    number = (number ^ number >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ number >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return number ^ number >> np.uint64(31)


PLACE, LANE, HALF = np.arange(4096)[:, None], np.arange(16), np.arange(2)
KEYS = mixed(2**52 + 2 * PLACE + LANE // 8) >> (8 * (LANE % 8)).astype(np.uint64)
KEYS = (KEYS % np.uint64(128)).astype(np.float64) - 64


def digest(tensor: torch.Tensor) -> str:
    plain = tensor.detach().cpu().contiguous()
    content = plain.reshape(-1).view(torch.int8).numpy()
    total = len(content) * (mixed(2**54 + HALF) | np.uint64(1))
    for start in range(0, len(content), 2**22):
        piece = content[start : start + 2**22]
        rows = np.pad(piece, (0, -len(piece) % 4096)).reshape(-1, 4096).astype(np.float64)
        number = start // 4096 + np.arange(len(rows))[:, None]
        sums = (rows @ KEYS).astype(np.int64).astype(np.uint64)
        sums = sums @ (mixed(2**50 + 2 * LANE[:, None] + HALF) | np.uint64(1))
        total = total + (sums * (mixed(2**40 + 2 * number + HALF) | np.uint64(1))).sum(0)
    text = "".join(f"{int(half):016x}" for half in total)
    return f"{str(plain.dtype).removeprefix('torch.')} {[*plain.shape]} {text}"


def test_some_lines_give_the_same_digests() -> None:
    """Of each parameter and of each buffer that is saved."""
    model = tiny(mixture=True)
    ours = weight_snapshot(model, digests=True)
    theirs = {name: digest(tensor) for name, tensor in model.state_dict().items()}
    assert theirs.items() <= ours.items()
    assert {*ours} - {*theirs} == {"rotary_emb.frequencies"}


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 2**22 + 5])
def test_digests_of_all_sizes_are_the_same(size: int) -> None:
    """Of whole blocks, of pieces of them, and of more than is computed at once."""
    content = torch.arange(size).mul(7).to(torch.uint8)
    assert digest(content) == weight_digest(content)


def test_a_wrapped_weight_has_the_name_of_its_base() -> None:
    """So that an engine without adapters is compared with a trainer that has them."""
    weights = weight_snapshot(with_adapters(tiny()))
    assert "layers.0.self_attn.v_proj.weight" in weights
    assert float(weights["layers.0.self_attn.v_proj.lora_scaling.default"]) == 1.5
