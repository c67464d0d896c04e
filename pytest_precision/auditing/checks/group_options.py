"""Check parameter group options that the optimizer ignores or applies unexpectedly."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pytest_precision.auditing.facts import SetupFacts
from pytest_precision.auditing.finding import AuditFinding

GROUP_OPTIONS = frozenset(
    {"amsgrad", "betas", "capturable", "dampening", "decoupled_weight_decay", "differentiable"}
    | {"eps", "foreach", "fused", "maximize", "momentum", "nesterov", "weight_decay"}
)
"""What a group of torch's optimizers may say; groups of frameworks have marks of their own too."""


REFUSED = re.compile(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'")


def decay_on_vectors(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a note if norms and biases have weight decay, which most recipes leave out."""
    names = [
        name
        for name, parameter in facts.trained()
        if all(len(shape) < 2 for shape in facts.setup.shapes(parameter))
        for updated in facts.ownership.by_name.get(name, ())[:1]
        if updated.group.get("weight_decay")
    ]
    if names:
        yield AuditFinding(
            "decay-on-vectors",
            "note",
            "weight decay pulls norms and biases to zero",
            "put vectors into a group with weight_decay=0, unless that is meant",
            tuple(names),
        )


def ignored_options(facts: SetupFacts) -> Iterator[AuditFinding]:
    """Yield a warning for each parameter group option that the optimizer does not read."""
    for holder in facts.ownership.holders:
        for number, group in enumerate(holder.optimizer.param_groups):
            defaults = getattr(holder.optimizer, "defaults", {}).keys()
            for option in sorted(GROUP_OPTIONS & group.keys() - defaults) if defaults else ():
                yield AuditFinding(
                    "option-ignored",
                    "warning",
                    f"group {number} says {option}={group[option]!r}, an option that "
                    f"{holder.name} does not have and does not read",
                    "leave it out",
                    (f"group {number}",),
                )


def refused_option(error: BaseException) -> AuditFinding | None:
    """Return a finding if an error says that an optimizer refused an option; else None.

    Trainers give `foreach` to whatever optimizer is configured, and Transformer Engine's FusedAdam,
    which updates all tensors in one kernel anyway, refuses it.

    Args:
        error: raised while the set-up was built.
    """
    match = REFUSED.search(str(error))
    if match is None or match[2] not in GROUP_OPTIONS:
        return None
    return AuditFinding(
        "option-refused",
        "error",
        f"{match[1]} does not take the option {match[2]} of torch's optimizers",
        f"leave {match[2]} out where the optimizer is made",
        (match[1],),
    )
