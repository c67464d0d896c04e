"""Engines whose answers have the shapes that the sources of vLLM and SGLang define."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from pytest_precision.parity.compare.bounds import Unchecked
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.recipes.sglang import sglang_side
from pytest_precision.recipes.vllm import vllm_side, worker_digests
from pytest_precision.rollout import Scorer
from pytest_precision.rollout.expected_weights import SyncTerms
from pytest_precision.rollout.inference_weights import weight_digest
from pytest_precision.rollout.score_check import score_check

IDS = [[3, 1, 4, 1, 5], [2, 7, 1]]


class Bigram(nn.Module):
    """Logits of each token by the one before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(8, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


class SamplingParams(NamedTuple):
    """What vLLM is asked for."""

    max_tokens: int
    prompt_logprobs: int


class Logprob(NamedTuple):
    """What vLLM says of one id."""

    logprob: float
    rank: int = 1
    decoded_token: str = ""


class RequestOutput(NamedTuple):
    """What vLLM says of one prompt."""

    request_id: str
    prompt_token_ids: list[int]
    prompt_logprobs: list[dict[int, Logprob] | None] | None


class LLM:
    """Answers as `vllm.LLM` does, by a model."""

    def __init__(self, model: nn.Module, workers: Sequence[nn.Module] = ()) -> None:
        self.model, self.workers = model, workers or [model]

    def generate(
        self, prompts: list[dict[str, list[int]]], sampling: SamplingParams, *, use_tqdm: bool
    ) -> Iterator[RequestOutput]:
        assert (sampling.prompt_logprobs, use_tqdm) == (0, False)
        for number, prompt in enumerate(prompts):
            ids = prompt["prompt_token_ids"]
            likely = {0: Logprob(-0.5)}
            shown = [
                likely | {i: Logprob(v)} for i, v in zip(ids[1:], of(self.model, ids), strict=True)
            ]
            yield RequestOutput(str(number), ids, [None, *shown])

    def apply_model(self, function: Callable[[nn.Module], Any]) -> list[Any]:
        return [function(worker) for worker in self.workers]


class Engine:
    """Answers as `sglang.Engine` does, by a model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def generate(self, *, input_ids: list[list[int]], **options: Any) -> list[dict[str, Any]]:
        assert options["return_logprob"]
        assert options["logprob_start_len"] == 0
        rows = [zip([None, *of(self.model, ids)], ids, strict=True) for ids in input_ids]
        return [{"meta_info": {"input_token_logprobs": [(v, i, None) for v, i in r]}} for r in rows]

    def get_weights_by_name(self, name: str, truncate_size: int = 100) -> Any:
        weights = dict(self.model.named_parameters())
        return weights[name].float().tolist()[:truncate_size] if name in weights else None


def of(model: nn.Module, ids: list[int]) -> list[float]:
    """The log-probabilities of all tokens but the first."""
    row = torch.tensor(ids)
    scores: list[float] = Scorer(model=model).scores([row]).logprobs[0].tolist()
    return scores


def ruled(engine: Any, model: nn.Module, criterion: Any = None) -> Any:
    """The ruling on an engine, against a trainer of the same weights."""
    return score_check(engine, model, IDS, (), Criteria.of(criterion), SyncTerms())[0]


@pytest.fixture
def _vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("vllm")
    module.SamplingParams = SamplingParams  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", module)


@pytest.mark.usefixtures("_vllm")
def test_vllm_is_a_side() -> None:
    """Of each token its own log-probability is taken, and weights come as digests."""
    model = Bigram()
    assert ruled(vllm_side(LLM(Bigram())), model).outcome == "pass"
    stale = Bigram()
    stale.table.weight.data[0, 0] += 1
    assert "weight table has another digest" in ruled(vllm_side(LLM(stale)), model).reason


def test_sglang_is_a_side() -> None:
    """The first token has no log-probability; weights are left out unless they are asked for."""
    model = Bigram()
    left = {"weight": Unchecked("SGLang shows none")}
    assert ruled(sglang_side(Engine(Bigram())), model, left).outcome == "pass"
    other = Bigram()
    other.table.weight.data[3] += torch.arange(8)
    ruling = ruled(sglang_side(Engine(other)), model, left)
    assert ruling.reason.startswith("logprob of token 1 of sequence 0 is -")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sglang_shows_its_weights_by_name(dtype: torch.dtype) -> None:
    """Numbers as text in fp32 are the bits of the narrower dtype; what is lacking is said."""
    model, stale = Bigram().to(dtype), Bigram().to(dtype)
    assert ruled(sglang_side(Engine(Bigram().to(dtype)), model, dtype), model).outcome == "pass"
    stale.table.weight.data[3, 1] *= 1.01
    ruling = ruled(sglang_side(Engine(stale), model, dtype), model)
    assert ruling.reason.startswith("weight table differs in 1 of 64 elements")
    model.register_buffer("lacking", torch.zeros(2))
    with pytest.raises(ValueError, match=r"lacking .* from get_weights_by_name but got none"):
        ruled(sglang_side(Engine(Bigram()), model, dtype), model)


class Cut(nn.Module):
    """A layer of one worker, with the sizes that vLLM's layers keep."""

    def __init__(self, weight: torch.Tensor, **sizes: Any) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.__dict__.update(sizes)


def worker(model: dict[str, torch.Tensor], rank: int, size: int, kv_heads: int) -> nn.Module:
    """What a rank of tensor parallelism holds of a model with heads that are 2 wide."""
    part = nn.ModuleDict()
    shares = {"tp_rank": rank, "tp_size": size}
    q, k, v = model["q"], model["k"], model["v"]
    copies = max(1, size // kv_heads)
    pieces = [q.chunk(size)[rank], *(t.chunk(size // copies)[rank // copies] for t in (k, v))]
    lengths = [len(piece) for piece in pieces]
    part["qkv_proj"] = Cut(
        torch.cat(pieces),
        **shares,
        output_partition_sizes=lengths,
        input_size=8,
        input_size_per_partition=8,
        num_kv_head_replicas=copies,
    )
    width = 8 // size
    part["o_proj"] = Cut(
        model["o"].chunk(size, 1)[rank],
        **shares,
        input_size=8,
        input_size_per_partition=width,
        output_partition_sizes=[8],
    )
    rows = model["embed"].chunk(size)[rank]
    part["embed"] = Cut(rows, **shares, num_embeddings_per_partition=len(rows))
    part["norm"] = Cut(model["norm"])
    return part


@pytest.mark.parametrize(("size", "kv_heads"), [(2, 4), (4, 2), (1, 4)])
def test_parts_of_several_workers_are_joined(size: int, kv_heads: int) -> None:
    """Rows of fused weights, columns, the vocabulary, and keys that several workers have."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"q": (8, 8), "k": (2 * kv_heads, 8), "v": (2 * kv_heads, 8), "o": (8, 8)}
    shapes |= {"embed": (16, 8), "norm": (8,)}
    model = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    whole = {"qkv_proj.weight": torch.cat([model["q"], model["k"], model["v"]])}
    whole |= {f"{name}.weight": model[name[0] if name == "o_proj" else name] for name in NAMES}
    workers = [worker(model, rank, size, kv_heads) for rank in range(size)]
    expected = {name: weight_digest(tensor) for name, tensor in whole.items()}
    assert worker_digests(LLM(Bigram(), workers)) == expected
    workers[-1].get_submodule("o_proj").weight.data[0, 0] += 1
    changed = worker_digests(LLM(Bigram(), workers))
    assert {name for name in expected if changed[name] != expected[name]} == {"o_proj.weight"}


NAMES = ("o_proj", "embed", "norm")


def test_workers_that_cannot_be_joined_are_told() -> None:
    """One that has another copy of a whole weight, and one that is missing."""
    model = {name: torch.randn(8, 8) for name in ("q", "k", "v", "o", "embed")}
    model["norm"] = torch.ones(8)
    workers = [worker(model, rank, 2, 4) for rank in range(2)]
    with pytest.raises(ValueError, match=r"but got \d+ of \d+ elements of qkv_proj\.weight"):
        worker_digests(LLM(Bigram(), workers[:1]))
    workers[1].get_submodule("norm").weight.data[0] += 1
    with pytest.raises(ValueError, match=r"others in two workers of norm\.weight, \[8\] at \[0\]"):
        worker_digests(LLM(Bigram(), workers))


class Experts(nn.Module):
    """Experts of one worker, with what vLLM's layer keeps."""

    def __init__(self, gates: torch.Tensor, downs: torch.Tensor, **facts: Any) -> None:
        super().__init__()
        self.w13_weight, self.w2_weight = nn.Parameter(gates.clone()), nn.Parameter(downs.clone())
        self.__dict__.update(facts, local_num_experts=len(gates), global_num_experts=5)


def by_experts(gates: torch.Tensor, downs: torch.Tensor) -> list[nn.Module]:
    """Two workers of expert parallelism, which hold every other expert."""
    workers = []
    for rank in range(2):
        local = [*range(rank, 5, 2)]
        places = torch.full((5,), -1)
        places[local] = torch.arange(len(local))
        facts = {"tp_rank": 0, "tp_size": 1, "expert_map": places}
        workers.append(Experts(gates[local], downs[local], **facts))
    return workers


def by_tensors(gates: torch.Tensor, downs: torch.Tensor) -> list[nn.Module]:
    """Two workers of tensor parallelism, which hold a half of each expert's gate and of its up."""
    halves = [[part.chunk(2, 1)[rank] for part in gates.chunk(2, 1)] for rank in range(2)]
    return [
        Experts(torch.cat(parts, 1), downs.chunk(2, 2)[rank], tp_rank=rank, tp_size=2)
        for rank, parts in enumerate(halves)
    ]


@pytest.mark.parametrize("cut", [by_experts, by_tensors])
def test_experts_of_several_workers_are_joined(
    cut: Callable[[torch.Tensor, torch.Tensor], list[nn.Module]],
) -> None:
    """By the number of each expert in the model; one that another worker should have is told."""
    generator = torch.Generator().manual_seed(0)
    gates, downs = (torch.randn(5, *sizes, generator=generator) for sizes in ((8, 6), (6, 4)))
    workers = [nn.ModuleDict({"experts": part}) for part in cut(gates, downs)]
    expected = {
        "experts.w13_weight": weight_digest(gates),
        "experts.w2_weight": weight_digest(downs),
    }
    assert worker_digests(LLM(Bigram(), workers)) == expected
    moved = workers[0].get_submodule("experts").w13_weight.data
    moved[[0, 1]] = moved[[1, 0]]
    changed = worker_digests(LLM(Bigram(), workers))
    assert [name for name in expected if changed[name] != expected[name]] == ["experts.w13_weight"]
    with pytest.raises(ValueError, match=r"but got \d+ of \d+ elements of experts"):
        worker_digests(LLM(Bigram(), workers[:1]))
    workers[0].get_submodule("experts").enable_eplb = True  # type: ignore[assignment]
    with pytest.raises(ValueError, match="start vLLM without --enable-eplb"):
        worker_digests(LLM(Bigram(), workers))
