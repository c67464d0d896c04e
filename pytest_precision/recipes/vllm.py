"""vLLM as a side of `parity.score`: its scores of prompts, and digests of what its workers hold.

It uses `LLM.generate` with `prompt_logprobs`, and `LLM.apply_model`, which answers with a list of
what each worker says, as the sources of vLLM define them at commit 003d3ee22261; the sizes that
`layers/linear.py` keeps at commit 0036d38de46c; and the experts of `layers/fused_moe/layer.py` at
commit 0014ec6c58e1. No GPU has run it yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

from torch import Tensor, nn

from pytest_precision.errors import expected_but_got, is_bad_input
from pytest_precision.matrix.tensor_key import in_module
from pytest_precision.recipes.worker_parts import WorkerPart, joined_digests

__tracebackhide__ = is_bad_input


def vllm_side(llm: Any) -> Any:
    """Return an `LLM` as a `Scorer`, for `names="llama"` and its like.

    A function is sent to the worker, which vLLM does where the environment variable
    `VLLM_ALLOW_INSECURE_SERIALIZATION` is 1.

    Args:
        llm: of one worker, or of several that share a model by tensor, expert or pipeline
            parallelism.
    """
    scorer = resolve_name("pytest_precision.rollout.scorer:Scorer")
    return scorer(partial(vllm_scores, llm), weights=partial(worker_digests, llm))


def vllm_scores(llm: Any, sequences: Sequence[Tensor]) -> Any:
    """Return the log-probabilities of each token of the sequences, and the ids that vLLM has.

    Raises:
        ValueError: an answer has none.
    """
    sampling = resolve_name("vllm:SamplingParams")(max_tokens=1, prompt_logprobs=0)
    prompts = [{"prompt_token_ids": ids.tolist()} for ids in sequences]
    logprobs, identities = [], []
    for answer in llm.generate(prompts, sampling, use_tqdm=False):
        if answer.prompt_logprobs is None:
            got = f"none in the answer of request {answer.request_id}"
            raise ValueError(expected_but_got("prompt_logprobs of vLLM", got))
        ids = [*answer.prompt_token_ids]
        # The first token has no log-probability. The others have theirs also where more probable
        # ones are there.
        scored = [answer.prompt_logprobs[place][ids[place]] for place in range(1, len(ids))]
        logprobs.append([shown.logprob for shown in scored])
        identities.append(ids)
    return resolve_name("pytest_precision.rollout.scorer:TokenScores")(logprobs, identities)


def worker_digests(llm: Any) -> dict[str, str]:
    """Return the digest of each tensor that the workers of an `LLM` hold together.

    Raises:
        ValueError: the parts of a tensor cannot be joined; see `joined_digests`.
    """
    return joined_digests(llm.apply_model(parts_of_worker))


def parts_of_worker(model: nn.Module) -> dict[str, list[WorkerPart]]:
    """Return what a model's state dict holds of each tensor; this runs in each worker."""
    parts = {}
    for name, tensor in model.state_dict().items():
        path, leaf = in_module(name)
        owner = model.get_submodule(path)
        experts = [*_experts(owner)]
        of_experts = bool(experts) and tensor.ndim > 0 and len(tensor) == len(experts)
        parts[name] = [
            *(_expert_parts(owner, leaf, tensor, experts) if of_experts else _parts(owner, tensor))
        ]
    return parts


def _parts(owner: Any, tensor: Tensor) -> Iterator[WorkerPart]:
    """Yield the parts of a tensor, by the sizes that vLLM's layers keep.

    Linear layers cut rows, each fused weight by itself, or columns; embeddings cut their padded
    vocabulary. Any other tensor is held to be the same in all workers.
    """
    rank, size = getattr(owner, "tp_rank", 0), getattr(owner, "tp_size", 1)
    rows = tensor.shape[0] if tensor.ndim else 0
    columns = getattr(owner, "input_size_per_partition", None)
    fused = getattr(owner, "output_partition_sizes", ())
    if tensor.ndim == 2 and columns == tensor.shape[1] and columns < owner.input_size:
        yield WorkerPart.of(tensor, 1, rank * columns, owner.input_size)
    elif size > 1 and fused and sum(fused) == rows:
        yield from _fused_parts(tensor, fused, rank, size, getattr(owner, REPLICAS, 1))
    elif size > 1 and getattr(owner, "num_embeddings_per_partition", None) == rows:
        yield WorkerPart.of(tensor, 0, rank * rows, size * rows)
    else:
        yield WorkerPart.of(tensor)


HALVES = ("w13_weight", "w13_bias")
"""Tensors of gates and of ups behind them, which tensor parallelism cuts each by itself."""

CUT_IN_COLUMNS = "w2_weight"
"""The tensor of experts whose last dimension tensor parallelism cuts."""


def _experts(owner: Any) -> Iterator[int]:
    """Yield the number in the model of each expert that a layer of this worker holds.

    Raises:
        ValueError: vLLM moves experts between workers, so that a place is that of no one expert.
    """
    number = getattr(owner, "local_num_experts", 0)
    if number and getattr(owner, "enable_eplb", False):
        advice = "start vLLM without --enable-eplb"
        raise ValueError(expected_but_got("experts that stay where they are", "EPLB", advice))
    places = getattr(owner, "expert_map", None)
    if places is None:
        yield from range(number)
        return
    by_place = {int(place): expert for expert, place in enumerate(places.tolist()) if place >= 0}
    yield from (by_place[place] for place in range(number))


def _expert_parts(
    owner: Any, leaf: str, tensor: Tensor, experts: Sequence[int]
) -> Iterator[WorkerPart]:
    """Yield the parts of a stack of experts: neighbours together, gates and ups by themselves.

    Under expert parallelism a worker holds some experts as a whole; under tensor parallelism a part
    of each.
    """
    rank, size = owner.tp_rank, owner.tp_size
    shape = [owner.global_num_experts, *tensor.shape[1:]]
    axis = tensor.ndim - 1 if leaf == CUT_IN_COLUMNS else 1
    halves = 2 if leaf in HALVES else 1
    cut = halves == 2 or leaf == CUT_IN_COLUMNS
    length = tensor.shape[axis] // halves if cut else 0
    if cut:
        shape[axis] *= size
    for first, end in _runs(experts):
        rows = tensor[first:end]
        for half in range(halves):
            part = rows.narrow(axis, half * length, length) if cut else rows
            offsets = [experts[first]] + [0] * (tensor.ndim - 1)
            if cut:
                offsets[axis] = (half * size + rank) * length
            yield WorkerPart.placed(part, shape, offsets)


def _runs(experts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first place and the end of each run of experts that follow each other."""
    first = 0
    for place in range(1, len(experts) + 1):
        if place == len(experts) or experts[place] != experts[place - 1] + 1:
            yield first, place
            first = place


REPLICAS = "num_kv_head_replicas"
"""How many workers hold the same keys and values, where they are more than their heads."""


def _fused_parts(
    tensor: Tensor, lengths: Sequence[int], rank: int, size: int, replicas: int
) -> Iterator[WorkerPart]:
    copies = [1, *[replicas] * (len(lengths) - 1)]  # queries come first, and are never copied
    wholes = [length * size // copy for length, copy in zip(lengths, copies, strict=True)]
    first = begun = 0
    for length, copy in zip(lengths, copies, strict=True):
        part = tensor.narrow(0, begun, length)
        yield WorkerPart.of(part, 0, first + rank // copy * length, sum(wholes))
        first += length * size // copy
        begun += length
