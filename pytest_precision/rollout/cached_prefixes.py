"""Remember which ids the rows of a cache stand for, by the bytes of its keys.

Neither the cache itself nor the number of a row says it: a prefix is copied for each sequence that
goes on with it, and a search reorders the rows. The last keys of the last layer depend on all
tokens before them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from pytest_precision.rollout.module_outputs import row_digests


class Prefix(NamedTuple):
    """What a row of a cache stands for.

    Attributes:
        ids: of its tokens, without padding.
        logits: of its last token, of shape [vocabulary]; None if they were not shown.
    """

    ids: list[int]
    logits: Tensor | None


class CachedPrefixes:
    """The prefixes in all caches that are alive."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[int, Prefix]] = {}

    def keep(self, caches: Sequence[Any], prefixes: Sequence[Prefix | None]) -> None:
        """Note what the rows of the first cache among some objects stand for, None if unknown."""
        for cache in caches:
            digests = cached_rows(cache)
            if digests is None or len(digests) != len(prefixes):
                continue
            if id(cache) not in self._rows:
                weakref.finalize(cache, self._rows.pop, id(cache), None)
            pairs = zip(digests, prefixes, strict=True)
            self._rows[id(cache)] = {digest: row for digest, row in pairs if row is not None}
            return

    def of(self, cache: Any) -> Iterator[Prefix | None]:
        """Yield what each row of a cache stands for; None if nobody knows."""
        for digest in cached_rows(cache) or ():
            matching = (rows[digest] for rows in self._rows.values() if digest in rows)
            yield next(matching, None)


def cached_rows(cache: Any) -> list[int] | None:
    """Return a digest of the last keys of each row of a cache; None if it shows no keys.

    Args:
        cache: with `get_seq_length()`, and `layers` that have `keys` of shape
            [batch, heads, tokens, width], as those of Transformers have.
    """
    layers = getattr(cache, "layers", None)
    if not isinstance(layers, (list, tuple)) or not hasattr(cache, "get_seq_length"):
        return None
    shown = [*map(_keys_of, filter(_has_keys, layers))]
    if not shown:
        return None
    keys, tokens = shown[-1], int(cache.get_seq_length())
    # The keys of a first layer depend on their own token alone.
    first = 0 if len(shown) == 1 else min(tokens, keys.shape[2]) - 1
    last = keys[:, :, first : min(tokens, keys.shape[2])]
    digests: list[int] = row_digests(last.reshape(len(keys), -1)).tolist()
    return digests


def _has_keys(layer: Any) -> bool:
    keys = getattr(layer, "keys", None)
    return isinstance(keys, Tensor) and keys.ndim == 4 and keys.numel() > 0


def _keys_of(layer: Any) -> Tensor:
    keys: Tensor = layer.keys.detach()
    return keys
