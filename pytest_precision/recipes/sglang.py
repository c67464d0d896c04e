"""SGLang as a side of `parity.score`: its scores of prompts.

It uses `Engine.generate` with `return_logprob`, as the sources of SGLang define it at commit
001067fffe33. No GPU has run it yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pkgutil import resolve_name
from typing import Any

from torch import Tensor


def sglang_side(server: Any) -> Any:
    """Return an `Engine` as a `Scorer`, without weights: no call of SGLang gives all their bits.

    Args:
        server: the `Engine`.
    """
    return resolve_name("pytest_precision.rollout.scorer:Scorer")(partial(sglang_scores, server))


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
