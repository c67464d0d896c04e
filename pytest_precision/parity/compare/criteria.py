"""Choose the comparison criterion of each tensor, by its kind, such as `grad`, and its name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from pytest_precision.engine.kinds import KINDS, causal_rank
from pytest_precision.errors import expected_but_got, is_bad_input
from pytest_precision.parity.compare.bounds import Bitwise
from pytest_precision.parity.compare.calls import no_criterion
from pytest_precision.parity.compare.criterion import Criterion
from pytest_precision.parity.words import listed

__tracebackhide__ = is_bad_input

DEFAULT = "default"
"""The kind in a key that stands for every kind."""

WILDCARDS = frozenset("*?[]")

LISTED_NAMES = 5
"""Number of names that a message lists."""


class KeyedCriterion(NamedTuple):
    """A comparison criterion with the kind and the name pattern of tensors that it is for.

    Attributes:
        kind: kind of the tensors; `default` for every kind.
        pattern: shell pattern of their names; empty for all tensors of the kind.
        criterion: their criterion.
    """

    kind: str
    pattern: str
    criterion: Criterion

    @property
    def key(self) -> str:
        """Return the name under which a test gives the criterion, such as `exp_avg:*.qkv.bias`."""
        return f"{self.kind}:{self.pattern}" if self.pattern else self.kind

    @property
    def specificity(self) -> tuple[bool, bool, bool, int]:
        """Return a sort key: of the criteria that fit a tensor, the one highest by it applies."""
        literal = sum(character not in WILDCARDS for character in self.pattern)
        exact = literal == len(self.pattern)
        return bool(self.pattern), self.kind != DEFAULT, exact, literal

    def may_fit(self, kind: str) -> bool:
        """Return whether the criterion can apply to tensors of a kind, such as `grad`.

        A choice has either flipped or not: only a key of its own is a tolerance of a discrete kind.
        """
        if self.kind == DEFAULT and kind in KINDS and KINDS[kind].discrete:
            return bool(self.criterion.left_out)
        return self.kind in (kind, DEFAULT)

    def fits_name(self, name: str) -> bool:
        """Return whether the criterion's name pattern, if it has one, matches a tensor's name."""
        return not self.pattern or fnmatchcase(name, self.pattern)


OTHERWISE_BITWISE = KeyedCriterion(DEFAULT, "", Bitwise())
"""What holds where no other rule does."""


@dataclass(frozen=True)
class Criteria:
    """All comparison criteria of one `parity.check`, and which of them applies to which tensor.

    Attributes:
        rules: the first one that fits a tensor decides, else `OTHERWISE_BITWISE`.
    """

    rules: tuple[KeyedCriterion, ...] = (OTHERWISE_BITWISE,)

    @classmethod
    def of(cls, argument: Criteria | Criterion | Mapping[str, Criterion] | None) -> Criteria:
        """Make `Criteria` of a test's argument `criterion`; None means bitwise comparison.

        A single criterion is for all tensors.

        The most specific key of a mapping decides: one with names before one without, then one of
        the kind before one of `default`, then a whole name before a pattern, then the pattern with
        more characters that are not wildcards, then the later one.

        Args:
            argument: a mapping goes from `kind`, or `kind:pattern of names`, to criterion; the kind
                `default` stands for every kind. Kinds are free text, since optimizers name their
                own state.

        Raises:
            TypeError: for anything else, and for a mapping that holds anything but criteria.
            ValueError: for a key without a kind, or with an empty pattern.
        """
        if isinstance(argument, Criteria):
            return argument
        if argument is None or isinstance(argument, Criterion):
            argument = {DEFAULT: argument or Bitwise()}
        if not isinstance(argument, Mapping):
            raise no_criterion("criterion", argument)
        rules = [
            _rule(key, criterion) for key, criterion in {DEFAULT: Bitwise(), **argument}.items()
        ]
        rules.sort(key=lambda rule: rule.specificity)
        return cls(tuple(reversed(rules)))

    @property
    def bitwise(self) -> bool:
        """Return whether every compared tensor must have equal bytes, so that hashes suffice."""
        criteria = (rule.criterion for rule in self.rules)
        return all(criterion.exact or criterion.left_out for criterion in criteria)

    @property
    def exact(self) -> bool:
        """Return whether every tensor must have equal bytes, and none is left out."""
        return all(rule.criterion.exact for rule in self.rules)

    @property
    def noise_runs(self) -> int:
        """Return how many extra runs of the reference are needed to measure `noise()` bounds."""
        criteria = (rule.criterion for rule in self.rules)
        return max((criterion.further_runs for criterion in criteria), default=0)

    def of_tensor(self, kind: str, name: str) -> KeyedCriterion:
        """Return the most specific criterion that applies to a tensor of this kind and name."""
        return next(rule for rule in self.of_kind(kind) if rule.fits_name(name))

    def of_kind(self, kind: str) -> list[KeyedCriterion]:
        """Return the criteria that can apply to a kind of tensor, the most specific first.

        The last one applies to every name.
        """
        rules = [*(rule for rule in self.rules if rule.may_fit(kind)), OTHERWISE_BITWISE]
        whole = next(number for number, rule in enumerate(rules) if not rule.pattern)
        return rules[: whole + 1]

    def unchecked(self, kind: str) -> str:
        """Return why no tensor of a kind, such as `grad`, is compared; empty if any of them is."""
        reasons = [rule.criterion.left_out for rule in self.of_kind(kind)]
        return reasons[-1] if all(reasons) else ""

    def leave_out_some(self, kind: str) -> bool:
        """Return whether a tensor of a kind may be left out, by its name."""
        return any(rule.criterion.left_out for rule in self.of_kind(kind))

    def unknown(self, names: Mapping[str, Collection[str]]) -> str:
        """Return an error text if a criterion names tensors that were not compared; else empty.

        A misspelt key would leave the real tensors to another one, which may be looser. Kinds that
        not every cell has may be missing, and so may tensors that are left out anyway.

        Args:
            names: kind to the names of its tensors.
        """
        for rule in self.rules:
            if rule.criterion.left_out or rule.key == DEFAULT:
                continue
            kinds = [kind for kind in names if rule.may_fit(kind)]
            if not kinds:
                if rule.kind in KINDS:
                    continue
                observed_kinds = ", ".join(sorted(names, key=causal_rank))
                return (
                    f"the criterion names the kind {rule.kind}, which was not observed; there are "
                    f"{observed_kinds}"
                )
            tensor_names = list(dict.fromkeys(name for kind in kinds for name in names[kind]))
            if not any(map(rule.fits_name, tensor_names)):
                return (
                    f"the criterion names {rule.key}, but no tensor has such a name; there are "
                    f"{listed(tensor_names, LISTED_NAMES)}"
                )
        return ""

    def __str__(self) -> str:
        default, *rules = reversed(self.rules)
        return "; ".join([str(default.criterion), *(f"{r.key}: {r.criterion}" for r in rules)])


def _rule(key: object, criterion: object) -> KeyedCriterion:
    if not isinstance(key, str):
        raise TypeError(
            expected_but_got(
                "the name of a kind",
                f"{key!r} ({type(key).__name__}) as a key of criterion",
                "write {'grad': ulp(1)}",
            )
        )
    kind, colon, pattern = key.partition(":")
    if not kind or (colon and not pattern):
        raise ValueError(
            expected_but_got(
                "a kind, or a kind and a pattern of names,",
                f"{key!r} (str) as a key of criterion",
                "write {'exp_avg': ulp(1), 'exp_avg:*.qkv.bias': ulp(4)}",
            )
        )
    if not isinstance(criterion, Criterion):
        raise no_criterion(f"criterion[{key!r}]", criterion)
    return KeyedCriterion(kind, pattern, criterion)
