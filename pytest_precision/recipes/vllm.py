"""vLLM as a side of `parity.score`: its scores of prompts, and digests of what its worker holds.

It uses `LLM.generate` with `prompt_logprobs`, and `LLM.apply_model`, as the sources of vLLM define
them at commit 003d3ee22261. No GPU has run it yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

from torch import Tensor, nn

from pytest_precision.errors import expected_but_got, is_bad_input

__tracebackhide__ = is_bad_input


def vllm_side(llm: Any) -> Any:
    """Return an `LLM` as a `Scorer`, for `names="llama"` and its like.

    A function is sent to the worker, which vLLM does where the environment variable
    `VLLM_ALLOW_INSECURE_SERIALIZATION` is 1.

    Args:
        llm: of one worker: what several hold of a weight has no place in the whole.
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
    """Return the digest of each tensor that the worker of an `LLM` holds.

    Raises:
        ValueError: it has several.
    """
    workers = llm.apply_model(state_digests)
    if len(workers) != 1:
        advice = "start the LLM with tensor_parallel_size=1, or leave weights unchecked"
        raise ValueError(expected_but_got("vLLM with one worker", len(workers), advice))
    digests: dict[str, str] = workers[0]
    return digests


def state_digests(model: nn.Module) -> dict[str, str]:
    """Return the digests of a model's state dict; this runs in the worker."""
    digest = resolve_name("pytest_precision.rollout.inference_weights:weight_digest")
    return {name: digest(tensor) for name, tensor in model.state_dict().items()}
