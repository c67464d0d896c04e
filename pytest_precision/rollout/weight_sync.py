"""Compare what an engine holds with what a trainer holds: as bits, after the declared cast."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from pytest_precision.parity.compare.criteria import Criteria
from pytest_precision.parity.compare.tensors import Difference, compare
from pytest_precision.rollout import adapters
from pytest_precision.rollout.expected_weights import Delivery, ExpectedWeight, SyncTerms
from pytest_precision.rollout.inference_weights import WeightTable, module_name, weight_digest
from pytest_precision.rollout.other_orders import order_words
from pytest_precision.rollout.weight_causes import (
    MERGED_BESIDE,
    WEIGHT_NAME,
    Source,
    bits_of,
    cause,
)

WEIGHT_KIND = "weight"

_ROWS = re.compile(r"rows? \d+ (to \d+ )?of ")


class WrongWeight(NamedTuple):
    """A weight that the engine does not hold as it should.

    Attributes:
        name: of the trainer's weight, or of the engine's tensor.
        words: one line.
        explained: whether the line names a cause.
        cause: the line without the name.
    """

    name: str
    words: str
    explained: bool
    cause: str


class WeightSync(NamedTuple):
    """The outcome of a comparison of weights.

    Attributes:
        compared: names of the engine's tensors that were compared.
        findings: in the order of the engine's tensors.
        left_out: why weights were not compared; empty if they were.
    """

    compared: tuple[str, ...]
    findings: tuple[WrongWeight, ...]
    left_out: str = ""


class _Comparison:
    """Compares two tables of weights.

    Args:
        candidate: the engine's.
        reference: the trainer's.
        declared: by the test.
        criteria: of the test.
    """

    def __init__(
        self,
        candidate: WeightTable,
        reference: WeightTable,
        declared: SyncTerms,
        criteria: Criteria,
    ) -> None:
        both = adapters.has_factors(candidate) and adapters.has_factors(reference)
        self._ours = candidate if both else adapters.merged(candidate)
        self._merged = reference.deliveries if both else {}
        self._active = (candidate.active, reference.active) if both else (None, None)
        self._delivery = Delivery(reference, declared, factors=both)
        self._theirs = self._delivery.weights
        self._criteria = criteria

    def outcome(self) -> WeightSync:
        ours = self._ours.tensors
        targets = dict(self._delivery.of(ours))
        compared, findings = [], []
        for name in targets:
            rule = self._criteria.of_tensor(WEIGHT_KIND, name)
            if rule.criterion.left_out or name not in ours:
                continue
            compared.append(name)
            finding = self._finding(name, ours[name], targets)
            if finding is not None:
                findings.append(finding)
        findings += self._absent(targets)
        findings += self._wrong_adapters()
        return WeightSync(tuple(compared), tuple(findings), self._criteria.unchecked(WEIGHT_KIND))

    def _finding(
        self, name: str, actual: Tensor | str, targets: Mapping[str, ExpectedWeight]
    ) -> WrongWeight | None:
        target = targets[name]
        expected = target.expected
        if isinstance(actual, str) or isinstance(expected, str):
            ours, theirs = (
                side if isinstance(side, str) else weight_digest(side)
                for side in (actual, expected)
            )
            difference = None if ours == theirs else Difference("values")
        else:
            actual, expected = actual.detach().cpu(), expected.detach().cpu()
            criterion = self._criteria.of_tensor(WEIGHT_KIND, name).criterion
            difference = compare(actual, expected, criterion)
        if difference is None:
            return None
        label = part_of(name, actual, target)
        words = self._cause(name, actual, targets)
        if " in " in label:  # the rows are those of the whole, of which this is a part
            words = _ROWS.sub("", words)
        explained = bool(words)
        words = words or f"{WEIGHT_NAME} {unlike(actual, expected, difference)}"
        return WrongWeight(label, words.replace(WEIGHT_NAME, module_name(label)), explained, words)

    def _cause(self, name: str, actual: Tensor | str, targets: Mapping[str, ExpectedWeight]) -> str:
        """Return in words why a tensor is not as expected; empty if nobody knows."""
        target, wrong = targets[name], self._theirs.wrong.get(name, {})
        ours = actual if isinstance(actual, str) else ""
        if wrong and isinstance(actual, Tensor):
            ours = weight_digest(actual)
        if ours in wrong:
            return wrong[ours]
        if target.source is not None and isinstance(target.expected, Tensor):
            source = _among(target.source, name, targets)
            words = cause(actual, target.expected.detach().cpu(), source, target.ending)
            if not words and isinstance(actual, Tensor):
                words = order_words(actual, target)
            return words
        if name in self._merged and ours == self._merged[name][0]:
            return MERGED_BESIDE
        digested = ((other, each) for other, each in targets.items() if each.is_digest)
        alike = [other for other, each in digested if each.expected == ours]
        if len(alike) == 1:  # norms that nobody has trained are all alike
            return f"another tensor: {WEIGHT_NAME} holds {module_name(alike[0])}"
        return ""

    def _wrong_adapters(self) -> Iterator[WrongWeight]:
        """Yield that both sides hold the factors of adapters, and compute with other ones."""
        ours, theirs = self._active
        if ours is None or theirs is None or self._criteria.unchecked(WEIGHT_KIND):
            return
        if {*ours} != {*theirs}:
            names = [", ".join(sorted(side)) or "no adapter" for side in (ours, theirs)]
            words = f"wrong adapter: the candidate computes with {names[0]}, not with {names[1]}"
            yield WrongWeight("adapters", words, True, words)

    def _absent(self, targets: Mapping[str, ExpectedWeight]) -> Iterator[WrongWeight]:
        """Yield what the trainer holds and no tensor of the engine is made of, and the reverse."""
        if self._criteria.unchecked(WEIGHT_KIND):
            return
        used = {part for target in targets.values() for part in target.making.names}
        tensors = self._theirs.tensors
        memory = {t.data_ptr() for n, t in tensors.items() if n in used and isinstance(t, Tensor)}
        for name, tensor in tensors.items():
            tied = isinstance(tensor, Tensor) and tensor.data_ptr() in memory
            if name not in used and not tied and self._is_needed(name, self._theirs):
                words = f"never delivered: the candidate holds no {WEIGHT_NAME}"
                yield WrongWeight(name, words.replace(WEIGHT_NAME, module_name(name)), True, words)
        for name, target in targets.items():
            if (
                target.ending
                and name not in self._ours.tensors
                and self._is_needed(name, self._ours)
            ):
                words = f"never delivered: the candidate holds no {WEIGHT_NAME}"
                yield WrongWeight(name, words.replace(WEIGHT_NAME, module_name(name)), True, words)
        for name in self._ours.tensors:
            if name not in targets and self._is_needed(name, self._ours):
                words = f"{WEIGHT_NAME} of the candidate is made of no weight of the reference"
                yield WrongWeight(name, words.replace(WEIGHT_NAME, module_name(name)), False, words)

    def _is_needed(self, name: str, table: WeightTable) -> bool:
        """Return whether a tensor of one side must be on the other side, too."""
        rule = self._criteria.of_tensor(WEIGHT_KIND, name)
        return name not in table.optional and not rule.criterion.left_out


def sync_of(
    candidate: WeightTable, reference: WeightTable, declared: SyncTerms, criteria: Criteria
) -> WeightSync:
    """Return which weights of an engine are not those of the trainer, and why."""
    return _Comparison(candidate, reference, declared, criteria).outcome()


def _among(source: Source, name: str, targets: Mapping[str, ExpectedWeight]) -> Source:
    """Return a source that knows what the engine should hold elsewhere."""

    def others() -> Iterator[tuple[str, Tensor]]:
        for other, target in targets.items():
            if other != name and isinstance(target.expected, Tensor):
                yield module_name(other), target.expected

    return replace(source, others=others)


def part_of(name: str, actual: Tensor | str, target: ExpectedWeight) -> str:
    """Return the trainer's name of the part of a fused tensor that differs; else the whole's."""
    expected, making = target.expected, target.making
    if len(making.names) == 1 and not target.ending:
        return making.names[0]
    alike = isinstance(actual, Tensor) and isinstance(expected, Tensor)
    if not alike or making.stacked or target.ending or target.source is None:
        return name
    assert isinstance(actual, Tensor)
    assert isinstance(expected, Tensor)
    if actual.shape != expected.shape or actual.dtype is not expected.dtype:
        return name
    rows = (bits_of(actual) != bits_of(expected)).reshape(len(actual), -1).any(-1).nonzero()
    first, last = int(rows[0]), int(rows[-1])
    end = 0
    for part, length in zip(making.names, target.lengths, strict=True):
        start, end = end, end + length
        if start <= first and last < end:
            return f"{part} in {name}"
    return name


def unlike(actual: Tensor | str, expected: Tensor | str, difference: Difference) -> str:
    """Return in words how far a weight is from what it should be."""
    if isinstance(actual, str) or isinstance(expected, str):
        return "has another digest than that of the reference"
    problem = difference.reason
    if problem == "shape":
        return f"has the shape {[*actual.shape]}, not {[*expected.shape]}"
    if problem == "dtype" or difference.statistics is None:
        return f"is {actual.dtype}, not {expected.dtype}; declare cast="
    statistics = difference.statistics
    far = f", at most {statistics.max_abs:.3g} off" if statistics.measured else ""
    return f"differs in {statistics.mismatched} of {statistics.numel} elements{far}"
