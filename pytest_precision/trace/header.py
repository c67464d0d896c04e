"""The header of a trace: what holds for a whole run, and where its ranks ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_precision.trace.named_digests import XXH3
from pytest_precision.trace.rank_place import RankPlace

SCORES, FORWARDS = "scores", "forwards"
"""Keys in a header's environment of recordings of scores, and of forwards that may score."""

WARN_ONLY = "warn only"
"""What a header's environment says of `deterministic` where operators without a deterministic
algorithm run with a warning."""


@dataclass(frozen=True)
class Header:
    """The properties of a whole trace, such as which kinds of tensors could not be observed.

    Attributes:
        world_size: number of ranks, of the first segment.
        unobservable: kinds that the engine cannot show, each with the reason.
        environment: what else decides about the bits: versions, threads, determinism.
        digests: whether digests were kept of what is larger than `digests.UNDIGESTED_BYTES`.
        paths: those of `contract.PATHS` that the engine has taken.
        violations: in words, what any rank stored otherwise than its layout promises.
        products: dtypes of the matrix products that were seen on any rank.
        given: kind and name of what a script has shown of its own, which no checkpoint shows.
        unshown: what of an optimizer no tensor can show, each with the reason.
        read: axes of the user's own that the code of any rank has read.
        digest: name of the digests, see `named_digests`.
        place: of one rank, `host`, `device` and `serial` as in `RankPlace`; empty of several.
    """

    world_size: int
    unobservable: dict[str, str]
    environment: dict[str, str]
    digests: bool = False
    paths: tuple[str, ...] = ()
    violations: tuple[str, ...] = ()
    products: tuple[str, ...] = ()
    unshown: dict[str, str] = field(default_factory=dict)
    given: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    digest: str = XXH3
    place: dict[str, str] = field(default_factory=dict)


def header_in(index: Mapping[str, Any]) -> Header:
    """Return the header that the index of a rank has; format 2 names no digest."""
    return Header(**{name: index[name] for name in Header.__dataclass_fields__ if name in index})


def rank_place_of(rank: int, header: Header) -> RankPlace:
    """Return where a rank ran; recordings of earlier releases, and of other tools, do not say."""
    return RankPlace(rank, *(header.place.get(name, "") for name in RankPlace._fields[1:]))


def joined_header(headers: Sequence[Header]) -> Header:
    """Join the headers of all ranks and of all parts of the run into one header."""
    first_header = headers[0]
    return replace(
        first_header,
        place={},
        unobservable={kind: why for header in headers for kind, why in header.unobservable.items()},
        digests=any(header.digests for header in headers),
        paths=tuple(dict.fromkeys(path for header in headers for path in header.paths)),
        violations=tuple(dict.fromkeys(words for header in headers for words in header.violations)),
        unshown={name: why for header in headers for name, why in header.unshown.items()},
        given=tuple(dict.fromkeys(name for header in headers for name in header.given)),
        products=tuple(sorted({dtype for header in headers for dtype in header.products})),
        read=tuple(sorted({axis for header in headers for axis in header.read})),
    )
