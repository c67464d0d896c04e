"""What a run shows to be wrong by itself, without a reference and without a declared rule.

Each module has one judgement: its rule, what it watches, and its words. A judgement is entered in
`JUDGES`, and nowhere else.
"""

from __future__ import annotations

from pkgutil import resolve_name

from pytest_precision.probes.by_itself.run_judge import RunJudge

_FOLDER = __name__.rpartition(".")[0]

JUDGES: tuple[str, ...] = (
    "batch_norm:CountedTwice",
    "drawn_alike:DrawnAlike",
    "drawn_in_backward:DrawnInBackward",
    "kept_copies:KeptCopies",
    "permuted_apart:PermutedApart",
    "skipped_gradients:SkippedGradients",
    "stale_copies:StaleCopies",
    "thrown_away:ThrownAway",
    "unreached:Unreached",
    "unread_gradients:IdleOptimizers",
    "unread_gradients:UnreadGradients",
    "update_sizes:UpdateSizes",
)
"""Each judgement by its module here and its class."""


def judges() -> list[type[RunJudge]]:
    """Return the class of each judgement, imported where a run is judged."""
    return [resolve_name(f"{_FOLDER}.{path}") for path in JUDGES]
