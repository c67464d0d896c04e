"""Check parameter group options that the optimizer ignores or applies unexpectedly."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from pytest_precision.auditing.facts import SetupFacts
from pytest_precision.auditing.finding import AuditFinding
from pytest_precision.auditing.optimizer_facts import Holder
from pytest_precision.auditing.trial_step import sample, trial_step

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
    """Yield a warning for each parameter group option that nothing reads.

    A step of the optimizer on a copy shows what it reads. Marks, such as names and flags, are for
    others; a scheduler names in its code what it reads.
    """
    of_schedulers = {*map(type, facts.setup.schedulers)} | {*TORCH_SCHEDULERS}
    read_elsewhere = {word for kind in of_schedulers for word in words_in_code(kind)}
    read_elsewhere -= GROUP_OPTIONS  # which schedulers change for the optimizer
    for holder in facts.ownership.holders:
        defaults = getattr(holder.optimizer, "defaults", {}).keys()
        for number, group in enumerate(holder.optimizer.param_groups):
            options = [name for name in group.keys() - defaults if _is_option(name, group[name])]
            reads = _reads(holder, group) if options and defaults else None
            if reads is None:
                continue
            for option in sorted({*options} - reads - read_elsewhere):
                yield AuditFinding(
                    "option-ignored",
                    "warning",
                    f"group {number} says {option}={group[option]!r}, an option that "
                    f"{holder.name} does not have and does not read",
                    "leave it out, or write the name that the optimizer reads",
                    (f"group {number}",),
                )


def _is_option(name: str, value: Any) -> bool:
    """Return whether an entry of a group is an option: a number, or what torch's optimizers have.

    Frameworks mark groups by names and flags for themselves, and count steps there.
    """
    values = value if isinstance(value, (list, tuple)) else (value,)
    is_number = bool(values) and all(type(number) in (int, float) for number in values)
    return name not in ("params", "step") and (name in GROUP_OPTIONS or is_number)


def _reads(holder: Holder, group: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the options that one step on a copy reads; None if it cannot be tried."""
    start = next((part for part in map(sample, group["params"]) if part is not None), None)
    trial = start if start is None else trial_step(holder, group, start, torch.ones_like(start))
    return None if trial is None else trial.read


TORCH_SCHEDULERS = tuple(
    kind for kind in vars(torch.optim.lr_scheduler).values() if isinstance(kind, type)
)
"""Those of torch, which keep entries of their own in groups."""


def words_in_code(kind: type) -> Iterator[str]:
    """Yield the texts that the methods of a class and of its bases have in their code."""
    for base in kind.__mro__:
        for method in vars(base).values():
            code = getattr(method, "__code__", None)
            yield from (word for word in getattr(code, "co_consts", ()) if isinstance(word, str))


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
