"""Find the line that set an option or attribute, such as a learning rate, to another value."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from typing import NamedTuple

from pytest_precision.trace.operations import OperationLog, Setting


class SetOtherwise(NamedTuple):
    """An option or attribute that candidate and reference set to different values.

    Attributes:
        mine: what the candidate set; None where the reference alone did.
        theirs: what the reference set; None where the candidate alone did.
        rank: of the candidate.
    """

    mine: Setting | None
    theirs: Setting | None
    rank: int

    @property
    def setting(self) -> Setting:
        """Return the candidate's assignment, or the reference's if the candidate has none."""
        found = self.mine or self.theirs
        assert found is not None
        return found

    @property
    def is_by_user(self) -> bool:
        """Return whether a line of the user's own code, not of a library, made the assignment."""
        return self.setting.line is not None and self.setting.line.own

    @property
    def words(self) -> str:
        """Describe in words which value candidate and reference set the option or attribute to."""
        if self.mine is None:
            assert self.theirs is not None
            return f"the reference sets it to {self.theirs.value}, the candidate does not"
        if self.theirs is None:
            return f"set to {self.mine.value}, which the reference does not"
        return f"the reference sets it to {self.theirs.value}, this to {self.mine.value}"


def set_otherwise(
    candidate: Sequence[OperationLog], reference: Sequence[OperationLog]
) -> Iterator[SetOtherwise]:
    """Yield the options and attributes that both runs set differently, in the candidate's order."""
    for rank, (ours, theirs) in enumerate(zip(candidate, reference, strict=False)):
        mine, expected = _by_name(ours), _by_name(theirs)
        names = {**mine, **expected}
        by_name = (zip_longest(mine.get(name, ()), expected.get(name, ())) for name in names)
        for times in zip_longest(*by_name, fillvalue=(None, None)):
            for ours_set, theirs_set in times:
                if _value(ours_set) != _value(theirs_set):
                    yield SetOtherwise(ours_set, theirs_set, rank)


def _by_name(log: OperationLog) -> dict[str, list[Setting]]:
    found: dict[str, list[Setting]] = defaultdict(list)
    for setting in log.settings:
        found[setting.name].append(setting)
    return found


def _value(setting: Setting | None) -> str | None:
    """Return an assigned value as text, with digits in strings zeroed, as they may be counters."""
    if setting is None:
        return None
    is_text = setting.value[0] in "'\""
    return re.sub(r"\d+", "0", setting.value) if is_text else setting.value
