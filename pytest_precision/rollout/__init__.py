"""Ask whether a rollout engine holds what the trainer trained, and scores each token alike.

`parity.score` and `parity.invariant` judge by what is here. Names are imported on first use.
"""

from typing import TYPE_CHECKING

from pytest_precision import _lazy

if TYPE_CHECKING:
    from pytest_precision.rollout.inference_weights import weight_snapshot
    from pytest_precision.rollout.score_recording import show_scores
    from pytest_precision.rollout.scorer import Scorer, TokenScores

__all__ = ["Scorer", "TokenScores", "show_scores", "weight_snapshot"]

__getattr__, __dir__ = _lazy.exports(
    __name__,
    {
        "inference_weights": ("weight_snapshot",),
        "score_recording": ("show_scores",),
        "scorer": ("Scorer", "TokenScores"),
    },
)
