"""Say of which launch, host, release and time the files of one rank are."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any, NamedTuple

from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.trace.sound import sound_integer, sound_object, sound_text
from pytest_precision.version import __version__

FORMAT = 3
"""Format of a recording: of `recording.json` and of all others in its folder. Since 2, it names the
digest of each of them; since 3, each index names the digest of its tensors."""


class RankOrigin(NamedTuple):
    """What one rank says of its files before anybody reads them.

    Attributes:
        launch: what all ranks of one launch have in common; empty if nothing is known.
        host: name of its machine.
        format: of the files.
        release: of this package, which has written them.
        date: when the rank began, in UTC by the clock of the host.
    """

    launch: str
    host: str
    format: int
    release: str
    date: str

    @classmethod
    def of_process(cls, launch: str) -> RankOrigin:
        """Return the origin of files that this process writes now."""
        date = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return cls(launch, socket.gethostname(), FORMAT, __version__, date)

    @classmethod
    def sound(cls, content: Any) -> RankOrigin:
        """Parse and check the origin that a file names.

        Raises:
            ValueError: it is none.
        """
        facts = {name: sound_object("an origin", content).get(name) for name in cls._fields}
        number = sound_integer("format", facts.pop("format"))
        texts = {name: sound_text(name, text) for name, text in facts.items()}
        datetime.fromisoformat(texts["date"])
        return cls(**texts, format=number)


SAME_START = timedelta(hours=1)
"""Ranks of one launch begin within less."""


def expect_one_release(origins: Mapping[int, RankOrigin]) -> None:
    """Raise unless the files of all ranks were written by one release.

    Args:
        origins: rank to the origin of its files.

    Raises:
        RecordingError: with a rank and host of each of two.
    """
    releases = {(origin.format, origin.release): rank for rank, origin in origins.items()}
    if len(releases) > 1:
        both = " and ".join(
            f"format {form} of release {release} on rank {rank} ({origins[rank].host})"
            for (form, release), rank in sorted(releases.items(), key=lambda pair: pair[1])[:2]
        )
        advice = "install one release on all nodes, and record again"
        raise RecordingError(expected_but_got("ranks of one release", both, advice))


def clocks_apart(origins: Mapping[int, RankOrigin]) -> Iterator[str]:
    """Yield in words each host whose clock is far from that of the first rank's host."""
    if not origins:
        return
    first, *others = {origin.host: origin for origin in origins.values()}.values()
    for origin in others:
        ahead = datetime.fromisoformat(origin.date) - datetime.fromisoformat(first.date)
        if abs(ahead) >= SAME_START:
            hours = abs(ahead) / timedelta(hours=1)
            way = "ahead of" if ahead > timedelta() else "behind"
            yield f"the clock of {origin.host} is {hours:.1f} hours {way} that of {first.host}"
