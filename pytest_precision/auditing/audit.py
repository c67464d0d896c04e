"""Audit: find dtype mistakes in a model and its optimizer before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pytest_precision.auditing import text
from pytest_precision.auditing.checks import (
    group_options,
    membership,
    policies,
    schedules,
    updates,
)
from pytest_precision.auditing.checks.samplers import ShareSampler, samplers_apart, share_samplers
from pytest_precision.auditing.facts import SetupFacts, TableRow
from pytest_precision.auditing.finding import SEVERITIES, AuditFinding, Severity, worst_first
from pytest_precision.auditing.parallelism import ShardingUnit, StageOutput
from pytest_precision.errors import AuditError, NoSetupError, expect_one_of, expected_but_got

CHECKS: tuple[Callable[[SetupFacts], Iterator[AuditFinding]], ...] = (
    updates.updates,
    updates.states,
    updates.doubled_masters,
    updates.lost_decay,
    membership.foreign_tensors,
    membership.stale_masters,
    membership.idle_optimizers,
    membership.ungrouped_parameters,
    membership.doubly_grouped_parameters,
    group_options.decay_on_vectors,
    group_options.ignored_options,
    policies.unreduced,
    policies.reductions,
    policies.rounded_outputs,
    policies.stages,
    schedules.endless_schedules,
    schedules.other_optimizer,
    schedules.schedules_behind,
    membership.ties,
    membership.broken_ties,
)
"""All checks, in the order in which their findings of one severity stand."""


@dataclass(frozen=True)
class Audit:
    """The problems found in a model and optimizer without running them, and each tensor's dtypes.

    `str(audit)` is what the command line writes.

    Attributes:
        findings: the worst ones first.
        rows: one per parameter and buffer.
        units: what FSDP shards, and what its policy says.
        stages: what pipeline stages send.
        samplers: what each distributed sampler permutes its rows by.
    """

    findings: tuple[AuditFinding, ...]
    rows: tuple[TableRow, ...]
    units: tuple[ShardingUnit, ...]
    stages: tuple[StageOutput, ...]
    samplers: tuple[ShareSampler, ...] = ()

    @classmethod
    def of(cls, facts: SetupFacts) -> Audit:
        """Search the facts about a model and optimizer for known problems; return the audit."""
        findings = worst_first(finding for check in CHECKS for finding in check(facts))
        samplers = tuple(share_samplers(facts))
        shown = tuple(facts.rows), tuple(facts.units), tuple(facts.stages)
        return cls(tuple(findings), *shown, samplers)

    def at_least(self, severity: Severity) -> list[AuditFinding]:
        """Return the findings of this severity and of worse ones."""
        bad = SEVERITIES[: SEVERITIES.index(severity) + 1]
        return [finding for finding in self.findings if finding.severity in bad]

    @classmethod
    def together(cls, audits: Iterable[Audit]) -> Audit:
        """Merge the findings, tensors, sharded modules and stages of ranks; drop duplicates.

        What ranks must have alike is compared here.
        """
        parts = [*audits]
        findings = [finding for part in parts for finding in part.findings]
        findings += samplers_apart([part.samplers for part in parts])
        return cls(
            tuple(worst_first(findings)),
            *(
                tuple(dict.fromkeys(fact for part in parts for fact in getattr(part, name)))
                for name in ("rows", "units", "stages")
            ),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return findings, tensors, sharded modules and pipeline stages as plain data for JSON."""
        return {
            "findings": [asdict(finding) for finding in self.findings],
            "stored": [asdict(row) for row in self.rows],
            "sharded": [text.unit_as_dict(unit) for unit in self.units],
            "stages": [text.stage_as_dict(stage) for stage in self.stages],
        }

    def __str__(self) -> str:
        return "\n".join(text.audit_lines(self.findings, self.rows, self.units, self.stages))


def checked(model: Any, optimizer: Any, *more: Any, fail_on: Severity = "error") -> Audit:
    """Audit a model and its optimizer; raise AuditError for a finding as bad as `fail_on` or worse.

    Args:
        model: see `audit`.
        optimizer: see `audit`.
        more: see `audit`.
        fail_on: `error`, `warning` or `note`.

    Raises:
        AuditError: there is such a finding.
        ValueError: `fail_on` is no severity.
    """
    __tracebackhide__ = True
    expect_one_of("fail_on", fail_on, SEVERITIES)
    setup_audit = audit(model, optimizer, *more)
    if setup_audit.at_least(fail_on):
        raise AuditError(str(setup_audit))
    return setup_audit


def audit(model: Any, optimizer: Any, *more: Any) -> Audit:
    """Find in which dtypes a model is stored, computed, reduced and updated, without running it.

    Nothing is run or changed.

    Args:
        model: a module, or several in a list or a dict; wrapped, cast and sharded as it is trained.
        optimizer: as the loop steps it, or several in a list or a dict.
        more: further parts of the loop, in any order: schedulers, data loaders, pipeline stages.

    Returns:
        The findings, and a table of what everything is stored in.

    Raises:
        NoSetupError: a part is none of these.
    """
    return Audit.of(SetupFacts.of(model, optimizer, *more))


def audit_built(build: Callable[[], Any]) -> Audit:
    """Audit what `build` returns, such as model and optimizer; a known error becomes a finding.

    Args:
        build: returns the parts of a training loop.

    Raises:
        NoSetupError: it returns something else, or raises something else.
    """
    try:
        parts = build()
    except (Exception, SystemExit) as error:
        finding = group_options.refused_option(error) or schedules.unknown_length(error)
        if finding is None:
            raise NoSetupError(
                expected_but_got(
                    "a function that returns a model and its optimizer",
                    f"{type(error).__name__}: {error}",
                    "its traceback says where",
                )
            ) from error
        return Audit((finding,), (), (), ())
    return Audit.of(SetupFacts.of(parts))


AUDIT_RULES = {
    "update-below-fp32": "Parameters below fp32 are updated where they are stored, so that small "
    "updates are rounded away.",
    "update-unknown": "Parameters below fp32 have no master that can be seen.",
    "state-below-fp32": "The optimizer keeps moments or masters below fp32.",
    "master-doubled": "The optimizer keeps masters of parameters that are fp32 already.",
    "decay-lost": "Weight decay multiplies parameters below fp32 and is rounded away.",
    "foreign-parameters": "The optimizer updates tensors that the model does not use.",
    "stale-master": "Masters do not round to their parameters, which the next step overwrites.",
    "in-no-group": "Parameters that require gradients are in no group of an optimizer.",
    "nothing-to-train": "An optimizer has no parameter that requires gradients.",
    "in-two-groups": "Parameters are in two groups and are updated twice in each step.",
    "decay-on-vectors": "Weight decay pulls norms and biases to zero.",
    "option-ignored": "A group has an option that its optimizer does not read.",
    "option-refused": "The optimizer does not take an option that it was given.",
    "not-reduced": "Parameters came after DDP or FSDP wrapped the model, and are not reduced.",
    "reduce-below-fp32": "Gradients are summed over ranks or microbatches below fp32.",
    "output-rounded": "Outputs are cast to fewer digits than they were computed in.",
    "stage-declares-other": "A pipeline stage returns another dtype than it declares.",
    "stage-sends-rounded": "A pipeline stage sends fewer digits than it computes.",
    "endless-schedule": "A schedule spreads its rates over more steps than any training has.",
    "length-unknown": "The number of steps is computed from data that have no length.",
    "schedules-another": "A scheduler sets the rates of an optimizer that is not the one in use.",
    "schedule-behind": "A scheduler stands at 0 beside an optimizer that has made steps.",
    "samplers-apart": "Ranks take their shares of different permutations of the data.",
    "tied": "One weight has several names.",
    "tie-broken": "Embeddings that the model says are tied are two tensors.",
}
"""Name of each rule to what it is about, for those who have not seen the set-up."""
