"""Read which tensors a test exempts from the checks of one run against itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_precision.errors import expect_type, expected_but_got
from pytest_precision.parity.compare.bounds import Unchecked
from pytest_precision.parity.compare.criteria import Criteria

BY_RULE = ("momentum_buffer", "exp_avg", "exp_avg_sq", "master")
"""Kinds that are held to the rule that the workload declares."""

BY_IDENTITY = (
    "reduced_grad",
    "grad_norm",
    "param",
    "used_param",
    "quantized",
    "used_quantized",
    "scale",
    "amax",
)
"""Kinds that must follow from another one in the same run."""


BY_RECOMPUTATION = ("loss", "grad")
"""Kinds that are computed once more by the workload itself; `grad` stands for all gradients."""

BY_ITSELF = ("buffer", "rng")
"""Kinds of which a run shows by itself that they are wrong."""

JUDGED = (*BY_RULE, *BY_RECOMPUTATION, *BY_IDENTITY, *BY_ITSELF)
"""All kinds that something judges."""


@dataclass(frozen=True)
class Exempt:
    """The tensors that a test leaves out of the checks of a run against itself, with the reasons.

    Attributes:
        all: why nothing is; empty where something is.
        kinds: kind, or kind and pattern of names, to the reason.
    """

    all: str = ""
    kinds: Criteria = field(default_factory=Criteria)

    @classmethod
    def of(cls, oracle: Unchecked | Mapping[str, Unchecked] | None) -> Exempt:
        """Read a test's `oracle=`: the tensors that are not recomputed, each with a reason.

        Raises:
            TypeError: for anything else.
            ValueError: for a kind that nothing judges.
        """
        if oracle is None:
            return cls()
        if isinstance(oracle, Unchecked):
            return cls(oracle.reason)
        expected_form = "unchecked(reason=...) or {kind: unchecked(reason=...)}"
        advice = "leave it out to judge updates by the workload's optimizer_rule"
        expect_type("oracle", oracle, Mapping, expected_form, advice)
        for key, exemption in oracle.items():
            expect_type(f"oracle[{key!r}]", exemption, Unchecked, "unchecked(reason=...)", advice)
        kinds = Criteria.of(oracle)
        for rule in kinds.rules:
            if rule.criterion.left_out and rule.kind not in JUDGED:
                judged_kinds = ", ".join(JUDGED)
                raise ValueError(
                    expected_but_got(
                        f"a key of oracle to be one of {judged_kinds}",
                        f"{rule.kind!r}",
                        "oracle=unchecked(reason=...) without kinds turns all of them off",
                    )
                )
        return cls(kinds=kinds)

    def judges(self, kind: str, name: str) -> bool:
        """Return whether a tensor is checked against other tensors of the same run."""
        if self.all:
            return False
        return not self.kinds.of_tensor(kind, name).criterion.left_out

    @property
    def judges_gradients(self) -> bool:
        """Return whether losses and gradients are compared with ones the workload recomputes."""
        return not self.all and "grad" not in self.reasons()

    def reasons(self) -> dict[str, str]:
        """Return the reason for each kind of tensor left out; empty also if `all` gives one."""
        criteria = ((rule.key, rule.criterion) for rule in self.kinds.rules)
        return {
            key: criterion.reason for key, criterion in criteria if isinstance(criterion, Unchecked)
        }
