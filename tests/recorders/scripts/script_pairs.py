"""Pairs of command lines of the scripts in `fixtures/scripts`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).parents[3] / "fixtures" / "scripts"

HELPERS = {"meeting", "parsed_arguments", "place_of_process", "rate_of_arguments"}
"""Modules of that folder which scripts import."""


class Pair(NamedTuple):
    """Two command lines whose trained steps are compared.

    Attributes:
        candidate: the first one.
        reference: the second one.
        outcome: of the check; `error` where neither way can record the scripts.
        ranks: number of processes of each.
        steps: number of train steps.
    """

    candidate: str
    reference: str
    outcome: str = "fail"
    ranks: int = 1
    steps: int = 3

    @property
    def name(self) -> str:
        """The candidate's words, without what a test's id cannot have."""
        return self.candidate.replace(".py", "").replace(" ", ":")


def _against_right(words: str, *, ranks: int = 1, steps: int = 3) -> Pair:
    return Pair(words, f"{words} --right", ranks=ranks, steps=steps)


PAIRS = (
    Pair("rate_by_module.py --fast", "rate_by_module.py"),
    Pair("rate_by_module.py", "rate_by_module_too.py", outcome="pass"),
    Pair("arguments_parsed_at_import.py --lr 2e-3", "arguments_parsed_at_import.py --lr 1e-3"),
    Pair("place_read_at_import.py 2", "place_read_at_import.py 1", ranks=2),
    Pair("place_read_at_import.py 1", "place_read_at_import.py 1.0", ranks=2, outcome="pass"),
    Pair("alias_of_main.py", "alias_of_main.py again", outcome="pass"),
    Pair("never_advanced.py scheduler --soon --dead", "never_advanced.py scheduler --soon"),
    Pair("never_advanced.py scheduler --dead", "never_advanced.py scheduler"),
    Pair("never_advanced.py average --dead", "never_advanced.py average"),
    _against_right("slope_drawn_again.py"),
    _against_right("orthogonal_by_shard.py", ranks=2),
    _against_right("balance_thrown_away.py"),
    _against_right("masks_drawn_again.py"),
    _against_right("frozen_when_listed.py"),
    _against_right("second_token_by_own_count.py", ranks=2),
    _against_right("scale_grown_too_early.py", steps=4),
    _against_right("update_without_a_term.py float32"),
    _against_right("update_without_a_term.py bfloat16"),
    _against_right("defect_by_place.py stored bf16"),
    _against_right("defect_by_place.py wide bf16"),
    _against_right("defect_by_place.py term bf16"),
    _against_right("defect_by_place.py loss bf16"),
    _against_right("defect_by_place.py loss fp32"),
    _against_right("casts_kept.py"),
    _against_right("copies_kept.py cast"),
    _against_right("copies_kept.py gathered", ranks=2),
    Pair("rows_of_other_batches.py each", "rows_of_other_batches.py packed"),
    Pair("rows_of_other_batches.py each few", "rows_of_other_batches.py packed few"),
    Pair("scores_before_training.py 2e-3", "scores_before_training.py 1e-3"),
    Pair(
        "scores_before_training.py 2e-3 --scores",
        "scores_before_training.py 1e-3 --scores",
        outcome="error",
    ),
)
