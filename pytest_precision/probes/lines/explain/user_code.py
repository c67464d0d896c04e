"""Find what a user's code sets to another value, such as a rate, or omits of what a library does.

An override or a replaced function that computes too little makes no wrong value: what follows it
does. It is found by the line that calls it, which is the library's on both sides.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import PurePath
from typing import NamedTuple

from pytest_precision.probes.lines.explain.calls import short
from pytest_precision.probes.lines.operations import (
    CodeLine,
    LoggedOperation,
    OperationLog,
    Setting,
    Site,
    UserCall,
)


class SetOtherwise(NamedTuple):
    """An option or attribute that candidate and reference set to different values.

    Attributes:
        mine: what the candidate set; None where the reference alone did.
        theirs: what the reference set; None where the candidate alone did.
        when: in words, when one of them has done so, where the other did so later.
    """

    mine: Setting | None
    theirs: Setting | None
    when: str = ""

    @property
    def setting(self) -> Setting:
        """Return the candidate's assignment, or the reference's if the candidate has none."""
        setting = self.mine or self.theirs
        assert setting is not None
        return setting

    @property
    def line(self) -> CodeLine | None:
        """Return the source line that made the assignment."""
        return self.setting.line

    @property
    def other_line(self) -> CodeLine | None:
        """Return the line of the reference where both sides make the assignment; else None."""
        return None if self.mine is None or self.theirs is None else self.theirs.line

    @property
    def name(self) -> str:
        """Return what was set, such as an option of a parameter group."""
        return self.setting.name

    @property
    def is_by_user(self) -> bool:
        """Return whether a line of the user's code, and not of a library, made the assignment."""
        return self.line is not None and self.line.is_users

    @property
    def words(self) -> str:
        """Return words on the values that candidate and reference give the option or attribute."""
        if self.setting.is_call and self.theirs is None:
            return "called here between the backwards of one update, in the reference not"
        if self.setting.is_call:
            return f"the reference calls it here{self.when}, the candidate does not"
        if self.when and self.mine is not None:
            return f"set to {self.mine.value}{self.when}, by the reference after it"
        if self.when and self.theirs is not None:
            return (
                f"the reference sets it to {self.theirs.value}{self.when}, the candidate after it"
            )
        if self.mine is None:
            assert self.theirs is not None
            return f"the reference sets it to {self.theirs.value}, the candidate does not"
        if self.theirs is None:
            return f"set to {self.mine.value}, which the reference does not"
        return f"the reference sets it to {self.theirs.value}, the candidate to {self.mine.value}"


def set_otherwise(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog]
) -> Iterator[SetOtherwise]:
    """Yield the options and attributes that both runs set differently, in the candidate's order."""
    for ours, theirs in zip(candidate, reference, strict=False):
        mine, expected = _by_name(ours), _by_name(theirs)
        names = {**mine, **expected}
        by_name = (zip_longest(mine.get(name, ()), expected.get(name, ())) for name in names)
        for times in zip_longest(*by_name, fillvalue=(None, None)):
            for ours_set, theirs_set in times:
                if _value(ours_set) != _value(theirs_set):
                    yield SetOtherwise(ours_set, theirs_set)


def made_by_both(
    settings: Iterable[SetOtherwise],
    candidate: Sequence[OperationLog],
    reference: Sequence[OperationLog],
) -> list[SetOtherwise]:
    """Return settings without options of optimizers, unless both runs have made the same ones.

    A run that loads makes its optimizer once more: it sets the options of the first one again, and
    those of the steps from there on.
    """
    ours, theirs = (
        {setting.optimizer for log in logs for setting in log.settings}
        for logs in (candidate, reference)
    )
    return [s for s in settings if ours == theirs or s.setting.optimizer is None]


def _by_name(log: OperationLog) -> dict[str, list[Setting]]:
    settings: dict[str, list[Setting]] = defaultdict(list)
    for setting in log.settings:
        if setting.is_call or setting.drops_gradient:
            continue
        settings[setting.name].append(setting)
    return settings


def _value(setting: Setting | None) -> str | None:
    """Return an assigned value as text, with digits in strings zeroed, as they may be counters."""
    if setting is None:
        return None
    is_text = setting.value[0] in "'\""
    return re.sub(r"\d+", "0", setting.value) if is_text else setting.value


Effect = LoggedOperation | Setting
"""What a function does that a log shows."""

RECORDERS = ("recorders", "probes")
"""The folders in this package of what calls a layout or a script, whatever that is."""


class LeftOut(NamedTuple):
    """A user's function that a library calls in the candidate's run but not in the reference's.

    Attributes:
        entry: a call of it.
        rank: the first one of the candidate that calls it; None where all do.
        lacking: what the reference does there and it does not; None where no log shows any.
    """

    entry: UserCall
    rank: int | None
    lacking: Effect | None

    @property
    def line(self) -> CodeLine:
        """Return the file and line of the function that only the candidate calls."""
        return self.entry.line

    @property
    def other_line(self) -> None:
        """Return nothing: the reference calls another function."""

    @property
    def name(self) -> str:
        """Return the operation or option that the function omits, else the function's name."""
        return self.lacking.name if self.lacking is not None else self.line.function

    @property
    def words(self) -> str:
        """Return words on where the candidate calls the function, and what the reference does."""
        called = f"{short(self.entry.site)} calls {self.line.function} of {short(self.line)}"
        if self.lacking is None:
            return f"{called}, the reference another function"
        return f"{called}, which lacks it; the reference has it there"


def too_little(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], before: int | None
) -> LeftOut | None:
    """Return the user's function that does only part of what the reference does at its call site.

    Args:
        candidate: the logs of its ranks.
        reference: the logs of the reference's ranks.
        before: only calls before this operation; None for all.
    """
    suspects: list[LeftOut] = []
    for rank, ours, theirs, entries in _unshared_calls(candidate, reference, before):
        sites: dict[Site, list[UserCall]] = defaultdict(list)
        for entry in entries:
            sites[entry.site].append(entry)
        for site, calls in sites.items():
            lacking = _lacking(
                [d for call in calls for d in _effects_inside(ours, call)], theirs, site
            )
            if lacking is not None:
                suspects.append(LeftOut(min(calls, key=_length), rank, lacking))
    return _first_suspect(suspects, len(candidate))


def only_other(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], before: int | None
) -> LeftOut | None:
    """Return the one function without logged operations that only the candidate calls; else None.

    What computes or sets anything shows by that; what calls a whole layout is no such place.
    """
    suspects = [
        LeftOut(entry, rank, None)
        for rank, _, _, entries in _unshared_calls(candidate, reference, before)
        for entry in entries
        if not _length(entry) and not _calls_layouts(PurePath(entry.site.file))
    ]
    places = {(suspect.entry.site, suspect.line.function) for suspect in suspects}
    return _first_suspect(suspects, len(candidate)) if len(places) == 1 else None


def _calls_layouts(file: PurePath) -> bool:
    return any(file.is_relative_to(folder) for folder in RECORDERS)


def _first_suspect(suspects: Sequence[LeftOut], ranks: int) -> LeftOut | None:
    """Return the function to blame first: the one that runs the fewest operations; None if none."""
    first = min(
        suspects,
        key=lambda suspect: (_length(suspect.entry), suspect.entry.operations),
        default=None,
    )
    if first is None:
        return None
    same = {suspect.rank for suspect in suspects if suspect.entry.site == first.entry.site}
    return first._replace(rank=None) if len(same) == ranks else first


def _unshared_calls(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog], before: int | None
) -> Iterator[tuple[int, OperationLog, OperationLog, list[UserCall]]]:
    """Yield each rank's number, both logs, and the user functions that only the candidate calls.

    Where the reference calls a function of the user's, too, that is no library's. What a function
    does after the limit of a log is not to be seen.
    """
    reference_sites = {entry.site for log in reference for entry in log.entries}
    for rank, (ours, theirs) in enumerate(zip(candidate, reference, strict=False)):
        entries = [call for call in ours.entries if call.site not in reference_sites]
        if ours.cut:
            entries = [call for call in entries if call.operations[1] < ours.cut]
        if before is not None:
            entries = [call for call in entries if call.operations[0] <= before]
        yield rank, ours, theirs, entries


def _length(entry: UserCall) -> int:
    return entry.operations[1] - entry.operations[0] + entry.settings[1] - entry.settings[0]


def _effects_inside(log: OperationLog, entry: UserCall) -> list[Effect]:
    operations, settings = (slice(*span) for span in (entry.operations, entry.settings))
    return [*log.operations[operations], *log.settings[settings]]


def _lacking(mine: Sequence[Effect], theirs: OperationLog, site: Site) -> Effect | None:
    """Return what the reference does first at a call site that the candidate's function does not.

    None if nothing is lacking, or if mine has an effect that the reference's function has not: then
    the two do different things, and neither is a part of the other.
    """
    effects: list[Effect] = [*theirs.operations, *theirs.settings]
    effects = [effect for effect in effects if site in effect.sites[1:]]
    left = Counter(map(_what, mine))
    if left - Counter(map(_what, effects)):
        return None
    for effect in effects:
        only_allocates = isinstance(effect, LoggedOperation) and not effect.results
        if not left[_what(effect)] and not only_allocates:
            return effect
        left[_what(effect)] -= 1
    return None


def _what(effect: Effect) -> str:
    return effect.base if isinstance(effect, LoggedOperation) else effect.name
