"""Ways to score the same tokens by a model: alone, in a batch, packed, in chunks, with a cache."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision.errors import expected_but_got, is_bad_input

__tracebackhide__ = is_bad_input

PROMPT = 8
"""Tokens of the first forward of `decode` and `prefix` unless their names have a number."""

CHUNK = 16
"""Tokens of each forward of `chunk` unless its name has a number."""

Logits = Callable[["Caller", Sequence[Tensor]], list[Tensor]]


class Caller:
    """Calls a model with those of the options that its forward takes.

    Args:
        model: takes ids of shape [batch, tokens], and gives back logits, or what has `logits`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        parameters = inspect.signature(model.forward).parameters
        self._any = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
        self._names = {*parameters}

    def takes(self, option: str) -> bool:
        """Return whether the model's forward has an option, such as `position_ids`."""
        return self._any or option in self._names

    def need(self, way: str, *options: str) -> None:
        """Raise unless the model's forward has all options that a way needs.

        Raises:
            ValueError: with the option that it lacks.
        """
        for option in options:
            if not self.takes(option):
                name = type(self.model).__name__
                got = f"{name}.forward, which has no {option}"
                advice = "leave the way out, or give a Scorer a function of your own"
                raise ValueError(expected_but_got(f"a model for the way {way}", got, advice))

    def __call__(self, ids: Tensor, **options: Any) -> Any:
        """Return what the model gives back for a batch of ids."""
        options.setdefault("use_cache", False)
        taken = {name: value for name, value in options.items() if self.takes(name)}
        return self.model(ids, **taken)


def logits_of(output: Any) -> Tensor:
    """Return the logits of what a model gives back."""
    logits = output if isinstance(output, Tensor) else output.logits
    assert isinstance(logits, Tensor)
    return logits


def each_alone(call: Caller, sequences: Sequence[Tensor]) -> list[Tensor]:
    """Score each sequence in a forward of its own."""
    return [logits_of(call(ids[None]))[0] for ids in sequences]


def padded(side: str) -> Logits:
    """Return a function that scores all sequences in one batch, padded at one side.

    Args:
        side: `right` or `left`.
    """

    def score(call: Caller, sequences: Sequence[Tensor]) -> list[Tensor]:
        if len({*map(len, sequences)}) > 1 and side == "left":
            call.need("left", "attention_mask")
        width = max(map(len, sequences))
        ids = torch.zeros(len(sequences), width, dtype=torch.long, device=sequences[0].device)
        mask = torch.zeros_like(ids)
        spans = []
        for row, sequence in enumerate(sequences):
            start = width - len(sequence) if side == "left" else 0
            spans.append(slice(start, start + len(sequence)))
            ids[row, spans[-1]], mask[row, spans[-1]] = sequence, 1
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        logits = logits_of(call(ids, attention_mask=mask, position_ids=positions))
        return [logits[row, span] for row, span in enumerate(spans)]

    return score


def packed(call: Caller, sequences: Sequence[Tensor]) -> list[Tensor]:
    """Score all sequences as one row, told apart by `position_ids`."""
    call.need("packed", "position_ids")
    return _packed(call, sequences)


def by_lengths(call: Caller, sequences: Sequence[Tensor]) -> list[Tensor]:
    """Score all sequences as one row, told apart by cumulative lengths, too."""
    call.need("cu_seqlens", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k")
    lengths = torch.tensor([0, *map(len, sequences)], device=sequences[0].device)
    ends = lengths.cumsum(0).to(torch.int32)
    longest = int(lengths.max())
    options = {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
    return _packed(call, sequences, **options, max_length_q=longest, max_length_k=longest)


def _packed(call: Caller, sequences: Sequence[Tensor], **options: Any) -> list[Tensor]:
    ids = torch.cat([*sequences])[None]
    positions = torch.cat([torch.arange(len(s), device=s.device) for s in sequences])[None]
    logits = logits_of(call(ids, position_ids=positions, **options))[0]
    return [*torch.split(logits, [*map(len, sequences)])]


def chunked(first: int, size: int) -> Logits:
    """Return the way of a cache that is filled by `first` tokens, then by `size` at a time."""

    def score(call: Caller, sequences: Sequence[Tensor]) -> list[Tensor]:
        call.need("decode" if size == 1 else "chunk", "past_key_values", "use_cache")
        scored = []
        for ids in sequences:
            output = call(ids[None, :first], use_cache=True)
            logits = [logits_of(output)[0]]
            for start in range(first, len(ids), size):
                cache = output.past_key_values
                piece = ids[None, start : start + size]
                output = call(piece, past_key_values=cache, use_cache=True)
                logits.append(logits_of(output)[0])
            scored.append(torch.cat(logits))
        return scored

    return score


def prefixed(first: int) -> Logits:
    """Return the way of a cache of the first tokens, shared by all sequences that begin alike."""

    def score(call: Caller, sequences: Sequence[Tensor]) -> list[Tensor]:
        call.need("prefix", "past_key_values", "use_cache")
        prefixes: dict[tuple[int, ...], Any] = {}
        scored = []
        for ids in sequences:
            key = tuple(ids[:first].tolist())
            if key not in prefixes:
                prefixes[key] = call(ids[None, :first], use_cache=True)
            output = prefixes[key]
            logits = [logits_of(output)[0]]
            if len(ids) > first:
                cache = copy.deepcopy(output.past_key_values)
                rest = call(ids[None, first:], past_key_values=cache, use_cache=True)
                logits.append(logits_of(rest)[0])
            scored.append(torch.cat(logits))
        return scored

    return score


def by_merged_weights(call: Caller, sequences: Sequence[Tensor]) -> list[Tensor]:
    """Score each sequence by the weights with their adapters added to them, as an engine may hold.

    Raises:
        ValueError: the model has no adapters, or none that can be merged.
    """
    layers: list[Any] = [each for each in call.model.modules() if hasattr(each, "base_layer")]
    layers = [layer for layer in layers if callable(getattr(layer, "merge", None))]
    if not layers:
        got = f"{type(call.model).__name__}, of which no layer has `base_layer` and `merge()`"
        raise ValueError(expected_but_got("a model with adapters for the way merged", got))
    before = [[p.detach().clone() for p in layer.base_layer.parameters()] for layer in layers]
    try:
        for layer in layers:
            layer.merge()
        return each_alone(call, sequences)
    finally:
        # What is added to a rounded weight and taken away again does not give it back.
        for layer, tensors in zip(layers, before, strict=True):
            layer.unmerge()
            with torch.no_grad():
                for parameter, tensor in zip(layer.base_layer.parameters(), tensors, strict=True):
                    parameter.copy_(tensor)


def _decode(number: int) -> Logits:
    return chunked(number, 1)


def _chunk(number: int) -> Logits:
    return chunked(number, number)


FIXED: dict[str, Logits] = {
    "alone": each_alone,
    "batch": padded("right"),
    "left": padded("left"),
    "packed": packed,
    "cu_seqlens": by_lengths,
    "merged": by_merged_weights,
}
"""The ways without a number."""

NUMBERED: dict[str, tuple[Callable[[int], Logits], int]] = {
    "chunk": (_chunk, CHUNK),
    "decode": (_decode, PROMPT),
    "prefix": (prefixed, PROMPT),
}
"""The ways whose names may end with a number of tokens, with the number unless they do."""

HONEST = ("merged", "batch", "left", "packed", "decode", "chunk", "prefix")
"""Ways that a model computes the same by, in the order in which `noise` takes them."""


def way_of(name: str) -> Logits:
    """Return the way of a name, such as `left` or `chunk16`.

    Raises:
        ValueError: there is none of this name.
    """
    if name in FIXED:
        return FIXED[name]
    match = re.fullmatch(r"([a-z]+?)(\d*)", name)
    if match is not None and match[1] in NUMBERED and match[2] != "0":
        make, number = NUMBERED[match[1]]
        return make(int(match[2] or number))
    names = ", ".join([*FIXED, *(f"{numbered}N" for numbered in NUMBERED)])
    raise ValueError(expected_but_got(f"one of the ways {names}", repr(name)))


def logprobs_of(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the log-probability of each token of a sequence but the first, in fp32."""
    scored = torch.log_softmax(logits[:-1].float(), -1)
    return scored.gather(-1, ids[1:].unsqueeze(-1)).squeeze(-1)
