"""Engines whose answers have the shapes that the sources of vLLM and SGLang define."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn

from pytest_precision.parity.compare.bounds import Unchecked
from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.recipes.sglang import sglang_side
from pytest_precision.recipes.vllm import vllm_side
from pytest_precision.rollout import Scorer
from pytest_precision.rollout.expected_weights import SyncTerms
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

    def __init__(self, model: nn.Module, workers: int = 1) -> None:
        self.model, self.workers = model, workers

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
        return [function(self.model)] * self.workers


class Engine:
    """Answers as `sglang.Engine` does, by a model."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def generate(self, *, input_ids: list[list[int]], **options: Any) -> list[dict[str, Any]]:
        assert options["return_logprob"]
        assert options["logprob_start_len"] == 0
        rows = [zip([None, *of(self.model, ids)], ids, strict=True) for ids in input_ids]
        return [{"meta_info": {"input_token_logprobs": [(v, i, None) for v, i in r]}} for r in rows]


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
    with pytest.raises(ValueError, match="vLLM with one worker but got 2"):
        ruled(vllm_side(LLM(model, workers=2)), model)


def test_sglang_is_a_side() -> None:
    """The first token has no log-probability; weights have to be left out."""
    model = Bigram()
    left = {"weight": Unchecked("SGLang shows none")}
    assert ruled(sglang_side(Engine(Bigram())), model, left).outcome == "pass"
    other = Bigram()
    other.table.weight.data[3] += torch.arange(8)
    ruling = ruled(sglang_side(Engine(other)), model, left)
    assert ruling.reason.startswith("logprob of token 1 of sequence 0 is -")
