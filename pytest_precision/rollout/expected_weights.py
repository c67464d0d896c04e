"""Work out what an engine should hold of a trainer's weights, and of what it is made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from torch import Tensor

from pytest_precision.rollout import adapters
from pytest_precision.rollout.casts import Cast, cast_by
from pytest_precision.rollout.engine_names import Made, NameMap, made_of
from pytest_precision.rollout.inference_weights import Weights, WeightTable
from pytest_precision.rollout.weight_causes import Source


class SyncTerms(NamedTuple):
    """What a test declares of the way from the trainer's weights to the engine's.

    Attributes:
        cast: see `Cast`.
        names: see `NameMap`.
        history: step to the weights that the trainer held then.
    """

    cast: Cast = None
    names: NameMap = None
    history: Mapping[int, Weights] = {}


class ExpectedWeight(NamedTuple):
    """What one tensor of the engine should be, and of what it is made.

    Attributes:
        making: of the trainer's weights.
        source: see `Source`; None where the trainer shows a digest.
        expected: the tensor, or its digest.
        ending: of the engine's name after that of the whole.
        lengths: of the trainer's weights in dimension 0.
        sizes: their numbers of elements.
    """

    making: Made
    source: Source | None
    expected: Tensor | str
    ending: str = ""
    lengths: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()

    @property
    def is_digest(self) -> bool:
        """Return whether the trainer shows a digest alone."""
        return isinstance(self.expected, str)


class Delivery:
    """The way from a trainer's weights to an engine's.

    Args:
        trainer: what the trainer holds.
        declared: by the test.
        factors: whether the engine holds the factors of adapters, as the trainer does.

    Attributes:
        weights: the trainer's; with adapters merged, unless the engine holds their factors.
    """

    def __init__(self, trainer: WeightTable, declared: SyncTerms, *, factors: bool) -> None:
        self.weights = trainer if factors else adapters.merged(trainer)
        self._adapters = {} if factors else adapters.adapters_of(trainer)
        self._merged = adapters.merged(trainer) if factors else None
        self._history = {
            step: weights if factors else adapters.merged_former(weights, trainer.active)
            for step, weights in declared.history.items()
        }
        self._active = partial(adapters.is_active, trainer)
        self._deliveries = {} if factors else trainer.deliveries
        self._declared = declared

    def of(self, engine_names: Iterable[str]) -> Iterator[tuple[str, ExpectedWeight]]:
        """Yield what the engine should hold under these names, and under those of their scales."""
        theirs = self.weights.tensors
        for name in engine_names:
            if name in self._deliveries:
                digest, parts = self._deliveries[name]
                yield name, ExpectedWeight(Made((parts,)), None, digest)
                continue
            making = made_of(self._declared.names, name, theirs)
            if making is not None:
                yield from self._of_making(name, making)

    def _of_making(self, name: str, making: Made) -> Iterator[tuple[str, ExpectedWeight]]:
        parts = {part: self.weights.tensors[part] for part in making.names}
        tensors = {part: tensor for part, tensor in parts.items() if isinstance(tensor, Tensor)}
        if len(tensors) < len(parts):
            yield name, ExpectedWeight(making, None, next(iter(parts.values())))
            return
        whole = making.put_together(tensors)
        for ending, expected in cast_by(self._declared.cast, name, whole).items():
            source = self._source(name, ending, making, whole)
            lengths = tuple(len(tensor) if tensor.ndim else 1 for tensor in tensors.values())
            sizes = tuple(tensor.numel() for tensor in tensors.values())
            yield name + ending, ExpectedWeight(making, source, expected, ending, lengths, sizes)

    def _source(self, name: str, ending: str, making: Made, whole: Tensor) -> Source:
        former: dict[int, Tensor | str] = {}
        for step, weights in self._history.items():
            digest = weights.get(name + ending)
            tensors = {part: weights.get(part) for part in making.names}
            shown = {part: tensor for part, tensor in tensors.items() if isinstance(tensor, Tensor)}
            if len(shown) == len(tensors):
                former[step] = making.put_together(shown)
            elif isinstance(digest, str):
                former[step] = digest

        def cast(tensor: Tensor) -> Tensor:
            return cast_by(self._declared.cast, name, tensor)[ending]

        of_weight = self._adapters.get(making.names[0], []) if len(making.names) == 1 else []
        merged = None if self._merged is None else self._merged.tensors.get(name)
        if not isinstance(merged, Tensor) or merged is whole:
            merged = None
        return Source(whole, cast, former, tuple((a, self._active(a)) for a in of_weight), merged)
