"""Honest differences between a trainer and an engine, none of which is a defect."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from lora import merged_into, with_adapters
from planted_rollouts import FP8, delivered_in_fp8, fused, gate_and_up
from tiny_decoder import tiny
from torch import Tensor

from pytest_precision.rollout import Scorer, TokenScores, weight_snapshot
from pytest_precision.rollout.casts import cast_by
from pytest_precision.rollout.honest_noise import cast_weights
from pytest_precision.rollout.ways import logprobs_of

BF16, FP32 = torch.bfloat16, torch.float32


class Honest(NamedTuple):
    """An engine that holds what it should.

    Attributes:
        candidate: the engine.
        reference: the trainer.
        declared: cast, names and history.
    """

    candidate: Any
    reference: Any
    declared: Any = ()


def scored_by(way: str, **options: Any) -> Honest:
    """Return an engine that scores in another way."""
    return Honest(Scorer(model=tiny(FP32, **options), way=way), tiny(FP32, **options))


def cast_to_bf16(way: str) -> Honest:
    """Return an engine that computes in bf16 what a trainer has in fp32."""
    return Honest(Scorer(model=tiny(BF16), way=way), tiny(FP32), {"cast": "bfloat16"})


def under_autocast() -> Honest:
    trainer = Scorer(model=tiny(FP32), around=partial(torch.autocast, "cpu", BF16))
    return Honest(tiny(BF16), trainer, {"cast": "bfloat16"})


def merged_adapter() -> Honest:
    trainer = with_adapters(tiny(FP32))
    return Honest(merged_into(tiny(FP32), trainer), trainer)


def adapter_as_factors() -> Honest:
    trainer = with_adapters(tiny(FP32))
    return Honest(Scorer(model=copy.deepcopy(trainer), way="decode"), trainer)


def merged_while_it_scores(dtype: torch.dtype) -> Honest:
    trainer = with_adapters(tiny(dtype))
    return Honest(Scorer(model=copy.deepcopy(trainer), way="merged"), trainer)


def fused_queries() -> Honest:
    engine = tiny(FP32)
    side = Scorer(model=engine, way="packed", weights=fused(engine))
    return Honest(side, tiny(FP32), {"names": "llama"})


def shown_by_digests() -> Honest:
    engine = tiny(FP32)
    side = Scorer(model=engine, way="batch", weights=weight_snapshot(engine, digests=True))
    return Honest(side, tiny(FP32))


def tied_head() -> Honest:
    engine = tiny(FP32, tied=True)
    weights = weight_snapshot(engine)
    del weights["lm_head.weight"]
    return Honest(Scorer(model=engine, way="left", weights=weights), tiny(FP32, tied=True))


def rolled_out_in_fp8() -> Honest:
    trainer, engine = tiny(), tiny()
    weights = delivered_in_fp8(trainer)

    def score(ids: list[Tensor]) -> list[Tensor]:
        with cast_weights(engine, FP8):
            return [logprobs_of(engine(row[None]).logits[0], row) for row in ids]

    return Honest(Scorer(score, engine, weights=weights), trainer, {"cast": FP8})


def in_blocks(name: str, tensor: Tensor) -> Mapping[str, Tensor]:
    """Cast a projection to fp8 with a scale for each 16 x 16 elements; leave anything else."""
    if not name.endswith("_proj.weight"):
        return {"": tensor}
    rows, columns = (length // 16 for length in tensor.shape)
    blocks = tensor.float().view(rows, 16, columns, 16)
    scale = blocks.abs().amax((1, 3)) / 448
    data = (blocks / scale[:, None, :, None]).view(tensor.shape)
    return {"": data.to(torch.float8_e4m3fn), "_scale_inv": scale}


def scaled_in_blocks(cast: Any) -> Honest:
    trainer, engine = tiny(), tiny()
    weights = {
        name + ending: part
        for name, tensor in weight_snapshot(trainer).items()
        if isinstance(tensor, Tensor)
        for ending, part in cast_by(cast, name, tensor).items()
    }

    def score(ids: list[Tensor]) -> list[Tensor]:
        with cast_weights(engine, cast):
            return [logprobs_of(engine(row[None]).logits[0], row) for row in ids]

    return Honest(Scorer(score, engine, weights=weights), trainer, {"cast": cast})


def fp8_in_blocks() -> Honest:
    return scaled_in_blocks(in_blocks)


def mxfp8_of_this_package() -> Honest:
    return scaled_in_blocks({"*_proj.weight": "mxfp8_e4m3"})


def gate_and_up_fused() -> Honest:
    engine = tiny(FP32)
    side = Scorer(model=engine, way="left", weights=gate_and_up(engine, "gate", "up"))
    return Honest(side, tiny(FP32), {"names": "llama"})


def of_responses_alone() -> Honest:
    engine = tiny(FP32)

    def score(ids: list[Tensor]) -> TokenScores:
        scored = [logprobs_of(engine(row[None]).logits[0], row)[-5:] for row in ids]
        return TokenScores(scored, ids)

    return Honest(Scorer(score, engine), tiny(FP32))


def in_another_order() -> Honest:
    engine = tiny(FP32)

    def score(ids: list[Tensor]) -> dict[int, Tensor]:
        numbers = reversed(range(len(ids)))
        return {n: logprobs_of(engine(ids[n][None]).logits[0], ids[n]) for n in numbers}

    return Honest(Scorer(score, engine), tiny(FP32))


HONEST: tuple[Callable[[], Honest], ...] = (
    *(
        partial(scored_by, way)
        for way in ("batch", "left", "packed", "cu_seqlens", "chunk7", "decode", "prefix4")
    ),
    *(partial(scored_by, way, mixture=True) for way in ("left", "packed", "decode9")),
    partial(cast_to_bf16, "alone"),
    partial(cast_to_bf16, "decode9"),
    under_autocast,
    merged_adapter,
    adapter_as_factors,
    partial(merged_while_it_scores, FP32),
    partial(merged_while_it_scores, BF16),
    fused_queries,
    shown_by_digests,
    tied_head,
    rolled_out_in_fp8,
    fp8_in_blocks,
    mxfp8_of_this_package,
    gate_and_up_fused,
    of_responses_alone,
    in_another_order,
)
"""All of them."""
