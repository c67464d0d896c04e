"""Sixty-two defects that both sides may have, by class; ranks import them.

Each is an engine; a check of one against itself agrees bit for bit, so that only what a side shows
by itself can tell.
"""

from both_sides import accumulation, checkpoints, experts, quantized, reduction, updates
from both_sides.checkpoints import (
    EvalLeavesGradients,
    EvalTouchesMoments,
    LoadsModelOnly,
    LoadsNothing,
)
from both_sides.entries import ENTRIES, ONE, TWO, Small, again, plain, planted

__all__ = [
    "ENTRIES",
    "ONE",
    "TWO",
    "EvalLeavesGradients",
    "EvalTouchesMoments",
    "LoadsModelOnly",
    "LoadsNothing",
    "Small",
    "accumulation",
    "again",
    "checkpoints",
    "experts",
    "plain",
    "planted",
    "quantized",
    "reduction",
    "updates",
]
