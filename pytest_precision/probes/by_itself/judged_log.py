"""Store on disk what was wrong in a run by itself, and what only a look at all ranks can tell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from pytest_precision.trace.rank_log import RankPart, SealedLog
from pytest_precision.trace.sound import sound_flag, sound_list, sound_object, sound_text


@dataclass(frozen=True, slots=True)
class Remark:
    """One mistake that a run shows by itself.

    Attributes:
        rule: name of the rule that it breaks.
        kind: what is wrong by it, which a test may leave unchecked.
        words: it, in words.
        fails: whether a check fails by it; else it is a note.
    """

    rule: str
    kind: str
    words: str
    fails: bool


@dataclass(frozen=True, slots=True)
class RankFact:
    """What one rank did at a place of the run, to be held against what other ranks did there.

    Attributes:
        remark: what is said if two ranks that did different things here did not differ as they
            must.
        place: names the place; facts of one place are held against each other.
        digest: of what the rank did.
        beside: of what it did it for, such as its data; empty where all ranks must do the same.
    """

    remark: Remark
    place: str
    digest: str
    beside: str = ""

    def contradicts(self, other: RankFact) -> bool:
        """Return whether both cannot be right: equal for different data, or not equal at all."""
        if self.beside and other.beside:
            return self.beside != other.beside and self.digest == other.digest
        return self.digest != other.digest


@dataclass(frozen=True)
class JudgedLog(SealedLog):
    """What is wrong in a run by itself; each rank writes its remarks and its facts.

    Attributes:
        remarks: of all ranks, each once.
    """

    remarks: tuple[Remark, ...] = ()

    stem = "judged"

    @classmethod
    def merged(cls, parts: Iterable[RankPart]) -> JudgedLog:
        """Make one log of what ranks have found, and hold their facts against each other."""
        remarks: dict[Remark, None] = {}
        places: dict[tuple[Path, str, str], list[RankFact]] = {}
        for folder, _, content in parts:
            remarks |= {Remark(**row): None for row in content["remarks"]}
            for row in content["facts"]:
                fact = RankFact(**row | {"remark": Remark(**row["remark"])})
                places.setdefault((folder, fact.remark.rule, fact.place), []).append(fact)
        by_rule: dict[str, Remark] = {}
        for facts in places.values():
            for remark in _contradicted_remarks(facts):
                by_rule.setdefault(remark.rule, remark)
        return cls((*remarks, *by_rule.values()))

    @classmethod
    def absent(cls) -> JudgedLog:
        """Return the empty log of a run that has none, such as one that an earlier release made."""
        return cls()

    @classmethod
    def nothing(cls) -> dict[str, Any]:
        """Return the content of an empty log."""
        return judged_rows((), ())

    @classmethod
    def expect_sound(cls, content: Any) -> None:
        """Raise unless what a rank has found is well formed.

        Raises:
            ValueError: it names what cannot be.
        """
        sound_object("what a run shows", content, ("remarks", "facts"))
        for row in sound_list("remarks", content["remarks"]):
            _expect_remark(row)
        for row in sound_list("facts", content["facts"]):
            sound_object("a fact", row, ("remark", "place", "digest", "beside"))
            _expect_remark(row["remark"])
            for name in ("place", "digest", "beside"):
                sound_text(name, row[name])


def judged_rows(remarks: Iterable[Remark], facts: Iterable[RankFact]) -> dict[str, Any]:
    """Return a rank's findings as plain data, for `JudgedLog.store`."""
    return {"remarks": [*map(asdict, remarks)], "facts": [*map(asdict, facts)]}


def _contradicted_remarks(facts: list[RankFact]) -> Iterator[Remark]:
    return (first.remark for first, other in combinations(facts, 2) if first.contradicts(other))


def _expect_remark(row: Any) -> None:
    sound_object("a remark", row, ("rule", "kind", "words", "fails"))
    for name in ("rule", "kind", "words"):
        sound_text(name, row[name])
    sound_flag("fails", row["fails"])
