"""SGLang as a side of `parity.score`: its scores of prompts, and its weights by name.

It uses `Engine.generate` with `return_logprob`, as the sources of SGLang define it at commit
001067fffe33, and `Engine.get_weights_by_name`, as `models/llama.py` answers it at commit
00239548f1cd. Its weights checker hashes in a way of its own, which no trainer has. No GPU has run
it yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

import torch
from torch import Tensor, nn

from pytest_precision.errors import expected_but_got, is_bad_input

__tracebackhide__ = is_bad_input


def sglang_side(
    server: Any, trainer: nn.Module | None = None, dtype: torch.dtype = torch.bfloat16
) -> Any:
    """Return an `Engine` as a `Scorer`; with weights if a trainer's model is given.

    SGLang sends each number as text, so this is for a few million of them. It names weights as
    Transformers does, and splits what it has fused.

    Args:
        server: the `Engine`, of one worker.
        trainer: whose names and shapes of weights it is asked for.
        dtype: of the engine's weights: fp32, fp16 or bf16, whose values arrive in fp32 unrounded.
    """
    scorer = resolve_name("pytest_precision.rollout.scorer:Scorer")
    scores = partial(sglang_scores, server)
    if trainer is None:
        return scorer(scores)
    return scorer(scores, weights=lambda: dict(sglang_weights(server, trainer, dtype)))


def sglang_weights(
    server: Any, trainer: nn.Module, dtype: torch.dtype
) -> Iterator[tuple[str, Tensor]]:
    """Yield each weight of a trainer's model as the engine holds it.

    Raises:
        ValueError: the engine has none of this name, or a part of it.
    """
    for name, tensor in trainer.state_dict().items():
        values = server.get_weights_by_name(name, truncate_size=max(len(tensor), 1))
        shown = "none" if values is None else [*torch.tensor(values).shape]
        if shown != [*tensor.shape]:
            advice = "start SGLang with tp_size=1 and dp_size=1, or give its safetensors as weights"
            expected = f"{name} of the shape {[*tensor.shape]} from get_weights_by_name"
            raise ValueError(expected_but_got(expected, shown, advice))
        yield name, torch.tensor(values, dtype=torch.float32).to(dtype)


def sglang_scores(server: Any, sequences: Sequence[Tensor]) -> Any:
    """Return the log-probabilities of each token of the sequences, and the ids that SGLang has."""
    answers = server.generate(
        input_ids=[ids.tolist() for ids in sequences],
        sampling_params={"max_new_tokens": 1, "temperature": 0},
        return_logprob=True,
        logprob_start_len=0,
    )
    rows = [answer["meta_info"]["input_token_logprobs"] for answer in answers]
    # Of each token there are log-probability, id and text; the first token has no log-probability.
    logprobs = [[shown[0] for shown in row[1:]] for row in rows]
    return resolve_name("pytest_precision.rollout.scorer:TokenScores")(
        logprobs, [[shown[1] for shown in row] for row in rows]
    )
