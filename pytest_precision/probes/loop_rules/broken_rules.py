"""Store on disk which rules of every training loop a script has broken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pytest_precision.trace.rank_log import RankLog, RankPart


@dataclass(frozen=True)
class BrokenRules(RankLog):
    """The rules that the training loop of a script has broken; each rank writes pairs of them.

    Attributes:
        kinds: rule in words to the kind of the wrong tensor, which a test may leave unchecked.
    """

    kinds: Mapping[str, str] = field(default_factory=dict)

    stem = "rules"

    @classmethod
    def merged(cls, parts: Iterable[RankPart]) -> BrokenRules:
        """Make one log of the pairs of a kind and words that ranks have written."""
        return cls({words: kind for part in parts for kind, words in part.content})

    @classmethod
    def absent(cls) -> BrokenRules:
        """Return the empty log of a run that has none: of a layout, or made by `record`."""
        return cls()
