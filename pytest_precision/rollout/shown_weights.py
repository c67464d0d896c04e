"""Show what a side holds as digests, and of a trainer what each known mistake would make of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor

from pytest_precision.engine.observation import Chunk, Observation, whole
from pytest_precision.errors import expected_but_got
from pytest_precision.rollout.adapters import has_factors
from pytest_precision.rollout.casts import cast_by
from pytest_precision.rollout.engine_names import engine_names
from pytest_precision.rollout.expected_weights import Delivery, ExpectedWeight, SyncTerms
from pytest_precision.rollout.inference_weights import WeightTable, weight_digest
from pytest_precision.rollout.other_orders import orders_of_parts
from pytest_precision.rollout.weight_causes import hypotheses
from pytest_precision.rollout.wrong_pieces import wrong_pieces
from pytest_precision.trace.lin8 import LIN8
from pytest_precision.trace.named_digests import digested

OPTIONAL, ACTIVE = "optional", "active"
"""First words of the names of `output`: a weight that an engine may make by itself, and the
adapters that compute."""


def of_table(table: WeightTable) -> Iterator[Observation]:
    """Yield what a table says of its weights beside their bytes."""
    for name in sorted(table.optional):
        yield whole("output", f"{OPTIONAL} {name}", torch.tensor(True))
    if table.active is not None:
        yield whole("output", " ".join([ACTIVE, *table.active]), torch.tensor(True))


def of_weights(
    table: WeightTable, declared: SyncTerms, *, delivered: bool
) -> Iterator[Observation]:
    """Yield each weight of a side, after the declared cast.

    Args:
        table: of the side.
        declared: by the script.
        delivered: whether it is a trainer's, of which `of_delivery` says more.
    """
    for name, tensor in table.tensors.items():
        if isinstance(tensor, str):
            yield digested_elsewhere("weight", name, tensor)
            continue
        for ending, part in cast_by(declared.cast, name, tensor).items():
            yield digested(whole("weight", name + ending, part), LIN8)
    if delivered or has_factors(table):
        yield from of_delivery(table, declared)


def of_delivery(table: WeightTable, declared: SyncTerms) -> Iterator[Observation]:
    """Yield what an engine should hold of fused and merged weights, and what of wrong ones.

    A recording thus has the digest of each mistake that is known, so that the cause of a digest
    that is not as expected can be told without the tensors.
    """
    delivery = Delivery(table, declared, factors=False)
    plain = delivery.weights.tensors
    for name, target in delivery.of(engine_names(declared.names, plain)):
        if target.source is None or not isinstance(target.expected, Tensor):
            continue
        expected = weight_digest(target.expected)
        parts = [*target.making.names, *_factors(table, target)]
        if parts != [name.removesuffix(target.ending)]:
            yield digested_elsewhere("made_weight", " ".join([name, *parts]), expected)
        whole_ones = (*hypotheses(target.source, target.ending), *orders_of_parts(target))
        mistakes = [(words, _text(mistaken)) for words, mistaken in whole_ones]
        for words, text in (*mistakes, *wrong_pieces(target)):
            if text != expected:
                yield digested_elsewhere("wrong_weight", f"{name} {words}", text)


def _text(weight: Tensor | str) -> str:
    return weight if isinstance(weight, str) else weight_digest(weight)


def _factors(table: WeightTable, target: ExpectedWeight) -> list[str]:
    """Return the names of the adapters' factors that are merged into a weight."""
    if target.source is None or not target.source.adapters:
        return []
    layer = target.making.names[0].removesuffix("weight")
    return [name for name in table.tensors if name.startswith(f"{layer}lora_")]


def digested_elsewhere(kind: str, name: str, text: str) -> Observation:
    """Return an observation of a tensor of which only a digest is there.

    Args:
        kind: see `Observation`.
        name: of the tensor.
        text: dtype, shape and digest, see `weight_digest`.

    Raises:
        ValueError: the text has not these three.
    """
    match = re.fullmatch(r"(\w+) \[((?:\d+(?:, )?)*)\] ([0-9a-f]{32})", text)
    dtype = None if match is None else getattr(torch, match[1], None)
    if match is None or not isinstance(dtype, torch.dtype):
        expected = f"dtype, shape and digest of {name}, such as 'bfloat16 [2, 3] 0123...',"
        raise ValueError(expected_but_got(expected, repr(text)))
    shape = tuple(map(int, match[2].split(", "))) if match[2] else ()
    tensor = torch.empty(shape, dtype=dtype, device="meta")
    place = Chunk((0,) * len(shape), shape)
    return Observation(kind, name, tensor, shape, place, digest=match[3])
