"""Defects of rollouts, each with the words that name it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from lora import merged_into, with_adapters
from tiny_decoder import Rope, TinyDecoder, sequences, tiny
from torch import Tensor

from pytest_precision.rollout import Scorer, TokenScores, weight_snapshot
from pytest_precision.rollout.casts import cast_by
from pytest_precision.rollout.ways import logprobs_of

BF16, FP32 = torch.bfloat16, torch.float32


class Planted(NamedTuple):
    """A rollout with a defect.

    Attributes:
        candidate: the engine.
        reference: the trainer.
        words: what the first line must say, or a line below it.
        declared: cast, names and history.
    """

    candidate: Any
    reference: Any
    words: str
    declared: Mapping[str, Any] = MappingProxyType({})


def updated(model: TinyDecoder) -> tuple[TinyDecoder, TinyDecoder]:
    """Return a model after an update, and a copy of what it was before."""
    before = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator) * 2e-2
            parameter.add_(noise.to(parameter.dtype))
    return model, before


def of_logits(change: Callable[[Tensor], Tensor], model: TinyDecoder) -> Scorer:
    """Return a side that changes the logits of a model."""

    def score(ids: list[Tensor]) -> list[Tensor]:
        return [logprobs_of(change(model(row[None]).logits[0].float()), row) for row in ids]

    return Scorer(score=score, model=model)


def stale_tensor() -> Planted:
    trainer, before = updated(tiny())
    engine = copy.deepcopy(trainer)
    engine.layers[1].mlp.down_proj = before.layers[1].mlp.down_proj
    words = "stale: layers.1.mlp.down_proj holds the weights of step 3"
    return Planted(engine, trainer, words, {"history": {3: weight_snapshot(before)}})


def stale_by_digests() -> Planted:
    trainer, before = updated(tiny())
    engine = copy.deepcopy(trainer)
    engine.layers[1].mlp.down_proj = before.layers[1].mlp.down_proj
    side = Scorer(model=engine, weights=weight_snapshot(engine, digests=True))
    words = "stale: layers.1.mlp.down_proj holds the weights of step 3"
    return Planted(side, trainer, words, {"history": {3: weight_snapshot(before, digests=True)}})


def all_one_update_behind() -> Planted:
    trainer, before = updated(tiny(FP32))
    words = "stale: embed_tokens holds the weights of step 3, and so do 20 others"
    options = {"history": {3: weight_snapshot(before)}, "cast": "bfloat16"}
    return Planted(before.to(BF16), trainer, words, options)


def stale_shard() -> Planted:
    trainer, before = updated(tiny())
    engine = copy.deepcopy(trainer)
    weight = engine.layers[1].mlp.gate_proj.weight
    with torch.no_grad():
        weight[32:] = before.layers[1].mlp.gate_proj.weight[32:]
    words = "stale: rows 32 to 63 of layers.1.mlp.gate_proj holds the weights of step 3"
    return Planted(engine, trainer, words, {"history": {3: weight_snapshot(before)}})


def stale_columns() -> Planted:
    trainer, before = updated(tiny())
    engine = copy.deepcopy(trainer)
    with torch.no_grad():
        place = engine.layers[1].mlp.down_proj.weight[:, 16:32]
        place.copy_(before.layers[1].mlp.down_proj.weight[:, 16:32])
    words = "stale: columns 16 to 31 of layers.1.mlp.down_proj holds the weights of step 3"
    return Planted(engine, trainer, words, {"history": {3: weight_snapshot(before)}})


def stale_part_of_a_fused_tensor() -> Planted:
    trainer, before = updated(tiny())
    engine = copy.deepcopy(trainer)
    engine.layers[1].self_attn.k_proj = before.layers[1].self_attn.k_proj
    side = Scorer(model=engine, weights=fused(engine))
    place = "layers.1.self_attn"
    words = f"stale: {place}.k_proj in {place}.qkv_proj holds the weights of step 3"
    options = {"history": {3: weight_snapshot(before)}, "names": "llama"}
    return Planted(side, trainer, words, options)


def fused(model: TinyDecoder) -> dict[str, Tensor | str]:
    """Return the weights of a model with queries, keys and values in one tensor."""
    weights = weight_snapshot(model)
    for layer in range(len(model.layers)):
        place = f"layers.{layer}.self_attn"
        parts = [weights.pop(f"{place}.{part}_proj.weight") for part in "qkv"]
        weights[f"{place}.qkv_proj.weight"] = torch.cat(parts)
    return weights


def lora_lost() -> Planted:
    trainer = with_adapters(tiny())
    words = "never delivered: layers.0.self_attn.v_proj holds the base weight without the adapter"
    return Planted(tiny(), trainer, words)


def lora_scaled_twice() -> Planted:
    trainer = with_adapters(tiny(FP32))
    words = "another scale: layers.0.self_attn.v_proj has the scale of the adapter default applied"
    return Planted(merged_into(tiny(FP32), trainer, scaling=1.5 * 1.5), trainer, words)


def merged_on_the_grid() -> Planted:
    trainer = with_adapters(tiny(FP32))
    engine = merged_into(tiny(FP32).to(BF16), trainer)
    words = (
        "merged on the bfloat16 grid: layers.0.self_attn.v_proj and the adapter default were cast"
    )
    return Planted(engine, trainer, words, {"cast": "bfloat16"})


def wrong_adapter() -> Planted:
    trainer = with_adapters(tiny(FP32), "a", "b")
    engine = merged_into(tiny(FP32), trainer, name="b")
    words = "wrong adapter: layers.0.self_attn.v_proj has the adapter b merged"
    return Planted(engine, trainer, words)


def transposed_expert() -> Planted:
    trainer = tiny(mixture=True)
    engine = copy.deepcopy(trainer)
    with torch.no_grad():
        engine.layers[1].mlp.up[2] = trainer.layers[1].mlp.up[2].T
    words = "transposed: row 2 of layers.1.mlp.up is in the other order"
    return Planted(engine, trainer, words)


def untied_head() -> Planted:
    trainer, before = updated(tiny(tied=True))
    engine = tiny()
    engine.load_state_dict(trainer.state_dict())
    engine.lm_head.weight = torch.nn.Parameter(before.lm_head.weight.detach().clone())
    words = "never delivered: lm_head holds the weights of before the first step"
    return Planted(engine, trainer, words, {"history": {0: weight_snapshot(before)}})


def rope_base() -> Planted:
    engine = tiny(FP32)
    engine.rotary_emb = Rope(8, base=500000.0)
    return Planted(engine, tiny(FP32), "weight rotary_emb.frequencies differs in 3 of 4 elements")


def shifted_after_the_prefix() -> Planted:
    trainer = tiny(FP32)
    engine = copy.deepcopy(trainer)

    def score(ids: list[Tensor]) -> list[Tensor]:
        scored = []
        for row in ids:
            start = engine(row[None, :8], use_cache=True)
            positions = torch.arange(8, len(row))[None] + 1
            cache = start.past_key_values
            rest = engine(row[None, 8:], position_ids=positions, past_key_values=cache)
            scored.append(logprobs_of(torch.cat([start.logits[0], rest.logits[0]]), row))
        return scored

    return Planted(Scorer(score, engine), trainer, "first at rotary_emb, token 8; weights agree")


def mask_off_by_one() -> Planted:
    trainer = tiny(FP32)
    engine = copy.deepcopy(trainer)
    engine.shift = 1
    words = "first at layers.0.self_attn.o_proj, token 0; weights agree"
    return Planted(engine, trainer, words)


def left_without_positions() -> Planted:
    trainer = tiny(FP32, absolute=True)
    engine = copy.deepcopy(trainer)

    def score(ids: list[Tensor]) -> list[Tensor]:
        width = max(map(len, ids))
        scored = []
        for row in ids:
            pad = width - len(row)
            padded = torch.cat([torch.zeros(pad, dtype=torch.long), row])[None]
            mask = torch.cat([torch.zeros(pad), torch.ones(len(row))])[None]
            scored.append(logprobs_of(engine(padded, attention_mask=mask).logits[0, pad:], row))
        return scored

    return Planted(
        Scorer(score, engine), trainer, "first at embed_positions, token 0; weights agree"
    )


def temperature_twice() -> Planted:
    trainer = tiny(FP32)
    engine = copy.deepcopy(trainer)
    candidate = of_logits(lambda logits: logits / 0.8 / 0.8, engine)
    reference = of_logits(lambda logits: logits / 0.8, trainer)
    return Planted(candidate, reference, "are of temperature 0.64, the reference's of 0.8")


def dtype_of_the_norm() -> Planted:
    engine, trainer = tiny(), tiny()
    engine.layers[1].input_layernorm.dtype = BF16
    return Planted(engine, trainer, "first at layers.1.input_layernorm, token 0; weights agree")


FP8 = {"*_proj.weight": "fp8_current_e4m3"}


def delivered_in_fp8(model: TinyDecoder) -> dict[str, Tensor | str]:
    """Return the weights of a model, those of projections as bytes and scales."""
    return {
        name + ending: part
        for name, tensor in weight_snapshot(model).items()
        if isinstance(tensor, Tensor)
        for ending, part in cast_by(FP8, name, tensor).items()
    }


def scale_of_another_step() -> Planted:
    trainer, before = updated(tiny())
    delivered, old = delivered_in_fp8(trainer), delivered_in_fp8(before)
    name = "layers.1.mlp.down_proj.weight_scale"
    side = Scorer(model=copy.deepcopy(trainer), weights=delivered | {name: old[name]})
    words = "another scale: layers.1.mlp.down_proj_scale holds the scale of step 3"
    return Planted(side, trainer, words, {"cast": FP8, "history": {3: weight_snapshot(before)}})


def wrong_eos_logit() -> Planted:
    def without_end(logits: Tensor) -> Tensor:
        return torch.cat([logits[:, :1] - 20, logits[:, 1:]], -1)

    trainer = tiny(FP32)
    words = "all modules agree, so that it arises after the model; weights agree"
    return Planted(of_logits(without_end, copy.deepcopy(trainer)), trainer, words)


def cast_twice() -> Planted:
    trainer = tiny(FP32)
    engine = copy.deepcopy(trainer)
    with torch.no_grad():
        weight = engine.layers[1].mlp.down_proj.weight
        weight.copy_(weight.to(torch.float16).float())
    words = "cast twice: layers.1.mlp.down_proj went through float16"
    return Planted(engine.to(BF16), trainer, words, {"cast": "bfloat16"})


def quantized_twice() -> Planted:
    trainer = tiny(FP32)
    engine = copy.deepcopy(trainer)
    with torch.no_grad():
        weight = engine.layers[1].mlp.down_proj.weight
        scale = weight.abs().max() / 448
        weight.copy_((weight / scale).to(torch.float8_e4m3fn).float() * scale)
    words = "quantized: layers.1.mlp.down_proj went through float8_e4m3fn with a scale of its own"
    return Planted(engine.to(BF16), trainer, words, {"cast": "bfloat16"})


def buffer_not_sent() -> Planted:
    trainer = tiny(FP32, mixture=True)
    engine = copy.deepcopy(trainer)
    start = weight_snapshot(engine)
    trainer.layers[1].mlp.balance += 0.25 * torch.arange(4)
    words = "never delivered: layers.1.mlp.balance holds the weights of before the first step"
    return Planted(engine, trainer, words, {"history": {0: start}})


def sampled_from_the_top() -> Planted:
    def top(logits: Tensor) -> Tensor:
        least = logits.topk(32).values[:, -1:]
        return logits.masked_fill(logits < least, -float("inf"))

    trainer = tiny(FP32)
    engine = copy.deepcopy(trainer)
    ids = [torch.cat([row[:1], engine(row[None]).logits[0, :-1].argmax(-1)]) for row in sequences()]

    def score(_: list[Tensor]) -> list[Tensor]:
        logits = [engine(row[None]).logits[0] for row in sequences()]
        rows = zip(logits, ids, strict=True)
        return [logprobs_of(top(scores.float()), row) for scores, row in rows]

    def full(_: list[Tensor]) -> list[Tensor]:
        rows = zip(sequences(), ids, strict=True)
        return [logprobs_of(trainer(row[None]).logits[0], chosen) for row, chosen in rows]

    words = "as those of a truncated distribution (top-k, top-p) are"
    return Planted(Scorer(score, engine), Scorer(full, trainer), words)


def encoded_anew() -> Planted:
    trainer = tiny(FP32)
    engine = copy.deepcopy(trainer)

    def score(ids: list[Tensor]) -> TokenScores:
        anew = [row.clone() for row in ids]
        anew[1][7] = 63 - anew[1][7]
        rows = [logprobs_of(engine(row[None]).logits[0], row) for row in anew]
        return TokenScores(rows, anew)

    words = "the candidate scores other tokens: id"
    return Planted(Scorer(score, engine), trainer, words)


def gate_and_up(model: TinyDecoder, *parts: str) -> dict[str, Tensor | str]:
    """Return the weights of a model with these two of each layer in one tensor, in this order."""
    weights = weight_snapshot(model)
    for layer in range(len(model.layers)):
        tensors = [weights[f"layers.{layer}.mlp.{part}_proj.weight"] for part in parts]
        for part in parts:
            del weights[f"layers.{layer}.mlp.{part}_proj.weight"]
        weights[f"layers.{layer}.mlp.gate_up_proj.weight"] = torch.cat(tensors)
    return weights


def exchanged_in_a_fused_tensor() -> Planted:
    engine = tiny()
    side = Scorer(model=engine, weights=gate_and_up(engine, "up", "gate"))
    place = "layers.0.mlp"
    words = f"another order: {place}.gate_up_proj holds {place}.up_proj, {place}.gate_proj, in"
    return Planted(side, tiny(), words, {"names": "llama"})


def experts_permuted() -> Planted:
    trainer = tiny(mixture=True)
    engine = copy.deepcopy(trainer)
    with torch.no_grad():
        engine.layers[1].mlp.up.copy_(trainer.layers[1].mlp.up[[0, 2, 1, 3]])
    words = "another order: layers.1.mlp.up holds its rows in the order 0, 2, 1, 3"
    return Planted(engine, trainer, words)


def one_bit() -> Planted:
    engine = tiny()
    with torch.no_grad():
        engine.layers[0].mlp.up_proj.weight.view(torch.int16)[5, 5] ^= 1
    return Planted(engine, tiny(), "weight layers.0.mlp.up_proj differs in 1 of 2048 elements")


def norms_that_add_one() -> Planted:
    engine = tiny(FP32)
    with torch.no_grad():
        engine.norm.weight += 1
    words = "another offset: norm is that of the reference plus 1"
    return Planted(engine, tiny(FP32), words)


def padded_vocabulary() -> Planted:
    engine = tiny()
    weights = weight_snapshot(engine)
    weights["lm_head.weight"] = torch.nn.functional.pad(engine.lm_head.weight.data, (0, 0, 0, 16))
    words = "padded: lm_head has 16 rows more at its end, which no cast declares"
    return Planted(Scorer(model=engine, weights=weights), tiny(), words)


def lora_with_the_scale_of_rslora() -> Planted:
    trainer = with_adapters(tiny(FP32))
    engine = merged_into(tiny(FP32), trainer, scaling=1.5 * 4**0.5)
    words = "another scale: layers.0.self_attn.v_proj has the adapter default times 3, not 1.5"
    return Planted(engine, trainer, words)


def lora_merged_beside_its_factors() -> Planted:
    trainer = with_adapters(tiny(FP32))
    engine = copy.deepcopy(trainer)
    layer = engine.layers[1].self_attn.v_proj
    with torch.no_grad():
        layer.base_layer.weight += layer.delta()
    words = "merged twice: layers.1.self_attn.v_proj has its adapters merged, and their factors"
    return Planted(engine, trainer, words)


def lora_of_another_step() -> Planted:
    trainer = with_adapters(tiny(FP32))
    engine = merged_into(tiny(FP32), trainer)
    history = {3: weight_snapshot(trainer)}
    with torch.no_grad():
        for layer in trainer.layers:
            layer.self_attn.v_proj.lora_B["default"].weight += 0.05
    words = "stale: layers.0.self_attn.v_proj holds the weights of step 3, and so does one other"
    return Planted(engine, trainer, words, {"history": history})


def another_adapter_computes() -> Planted:
    trainer = with_adapters(tiny(FP32), "a", "b")
    engine = copy.deepcopy(trainer)
    for layer in engine.layers:
        layer.self_attn.v_proj.active_adapters = ["b"]
    words = "wrong adapter: the candidate computes with b, not with a"
    return Planted(engine, trainer, words)


def dora_without_its_magnitude() -> Planted:
    trainer = with_adapters(tiny(FP32))
    shown = weight_snapshot(trainer)
    for layer in range(len(trainer.layers)):
        place = f"layers.{layer}.self_attn.v_proj"
        lengths = shown[f"{place}.weight"].norm(dim=1) + 0.1
        shown[f"{place}.lora_magnitude_vector.default.weight"] = lengths
    words = "never delivered: layers.0.self_attn.v_proj lacks the magnitude of the adapter default"
    reference = Scorer(model=trainer, weights=shown)
    return Planted(merged_into(tiny(FP32), trainer), reference, words)


def scale_not_sent() -> Planted:
    trainer = tiny()
    delivered = delivered_in_fp8(trainer)
    del delivered["layers.1.mlp.down_proj.weight_scale"]
    side = Scorer(model=copy.deepcopy(trainer), weights=delivered)
    words = "never delivered: the candidate holds no layers.1.mlp.down_proj_scale"
    return Planted(side, trainer, words, {"cast": FP8})


PLANTED = (
    stale_tensor,
    stale_by_digests,
    all_one_update_behind,
    stale_shard,
    stale_columns,
    stale_part_of_a_fused_tensor,
    lora_lost,
    lora_scaled_twice,
    merged_on_the_grid,
    wrong_adapter,
    transposed_expert,
    untied_head,
    rope_base,
    shifted_after_the_prefix,
    mask_off_by_one,
    left_without_positions,
    temperature_twice,
    dtype_of_the_norm,
    scale_of_another_step,
    wrong_eos_logit,
    cast_twice,
    quantized_twice,
    buffer_not_sent,
    sampled_from_the_top,
    encoded_anew,
    exchanged_in_a_fused_tensor,
    experts_permuted,
    one_bit,
    norms_that_add_one,
    padded_vocabulary,
    lora_with_the_scale_of_rslora,
    lora_merged_beside_its_factors,
    lora_of_another_step,
    another_adapter_computes,
    dora_without_its_magnitude,
    scale_not_sent,
)
"""All of them."""
