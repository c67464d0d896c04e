"""The figures that a check may have: what it counts and measures, whatever its outcome.

Each has a name, which is a key of report.json, described in `report/schema.json`, and an attribute
of the verdict. Those that the check itself does not make are made by judgements (`registered`);
who makes one imports nothing of who shows it, and the other way round.
"""

from __future__ import annotations

from typing import Any

DEFAULT_FIGURES: dict[str, Any] = {
    "observations": 0,
    "bytes": 0,
    "seconds": 0.0,
    "timing": None,
    "lost_updates": None,
    "oracle": None,
    "identities": None,
    "curves": None,
    "environment": None,
    "left_out": None,
    "spread": None,
    "histogram": None,
    "needed": None,
    "noise": None,
    "notes": None,
    "unexercised": None,
    "then": None,
    "baseline": None,
    "rollout": None,
    "recorded": None,
    "hunk": None,
    "output": None,
}
"""What a verdict without a figure has, in the order of report.json, which leaves out None.

A figure that a judgement brings under another name stands after them.
"""
