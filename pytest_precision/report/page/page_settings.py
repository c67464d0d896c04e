"""Settings: the environment of a report as tables, with what differs between ranks in front."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class PageSettings(NamedTuple):
    """What the results depend on.

    Attributes:
        session: name to value: versions, platform, device, options.
        alike: name to value, the same on all ranks.
        unlike: name to the values of the sets below, where they are not the same.
        sets: number of different sets of settings that ranks ran with.
    """

    session: list[tuple[str, str]]
    alike: list[tuple[str, str]]
    unlike: list[tuple[str, list[str]]]
    sets: int


def read_environment(environment: Mapping[str, Any]) -> PageSettings:
    """Return the environment of a report in the order in which it is read."""
    session = [
        *environment.get("versions", {}).items(),
        ("platform", environment.get("platform", "")),
        ("device", environment.get("device", "")),
        ("world sizes", ", ".join(map(str, environment.get("world_sizes", [])))),
        *((f"option {name}", _text(v)) for name, v in environment.get("flags", {}).items()),
    ]
    ranks = environment.get("ranks", [])
    names = dict.fromkeys(name for own in ranks for name in own)
    values = {name: [own.get(name, "not set") for own in ranks] for name in names}
    return PageSettings(
        [(name, value) for name, value in session if value],
        [(name, own[0]) for name, own in values.items() if len({*own}) == 1],
        [(name, own) for name, own in values.items() if len({*own}) > 1],
        len(ranks),
    )


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
