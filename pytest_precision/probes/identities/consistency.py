"""Check whether a run contradicts itself, such as weights that are not their cast masters.

Two sides with the same defect agree, but a run that shows both the cause and the effect of a phase
shows whether one follows from the other. What an engine hides, or does not show by phases, decides
nothing; of a trace of digests only what must have the same bytes can be looked at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import Any

import torch

from pytest_precision.engine.loss_scale import LossScale
from pytest_precision.matrix.tensor_key import is_beside_masters
from pytest_precision.parity.compare.logical_tensor import region
from pytest_precision.parity.exempt import Exempt
from pytest_precision.probes.declared_rule.oracle_log import OracleLog
from pytest_precision.probes.identities import identity_rules, quantized_kinds
from pytest_precision.probes.identities.identity_rules import (
    Claim,
    Contradiction,
    EntriesByName,
    Judged,
    RunView,
)
from pytest_precision.probes.identities.quantized_kinds import QUANTIZED, stored_quantized
from pytest_precision.trace.moment import STATELESS, Moment
from pytest_precision.trace.reader import Entry
from pytest_precision.trace.recording import Recording

IDENTITY_KINDS = frozenset(
    {"used_param", "used_quantized", "loss", "grad", "reduced_grad", "grad_norm", "master", "param"}
    | {"loss_scale", "recorded_amax", *QUANTIZED.values()}
)
"""Kinds that identities are about."""

RESIDENT = ("param", "master", "loss_scale", "recorded_amax", *QUANTIZED.values())
"""Those of what is held between steps."""

FROZEN = "what it was before the step, although the workload freezes it"
"""What a frozen weight is, in words."""

LEFT = "what the update before has left"
"""What a high-precision weight is when an update starts, in words."""


@dataclass
class Consistency:
    """The results of checking one run against itself, such as `param` against its cast `master`.

    Attributes:
        checked: identity to the number of tensors that were looked at.
        breach: the first contradiction, in causal order; None where there is none.
    """

    checked: Counter[str] = field(default_factory=Counter)
    breach: Contradiction | None = None

    @classmethod
    def of(cls, side: Recording, log: OracleLog, exempt: Exempt) -> Consistency:
        """Check one run against itself up to the first contradiction; skip runs of a script.

        Args:
            side: the run, or some steps of it.
            log: of the whole run: how its engine shows what it does.
            exempt: what the test has not judged.
        """
        consistency = cls()
        if log.shown_by != "script":
            all_of_them = filter(None, _Walk(side, log, consistency.checked).judged())
            breaches = (breach for breach in all_of_them if exempt.judges(breach.kind, breach.name))
            consistency.breach = next(breaches, None)
        return consistency

    def as_dict(self) -> dict[str, Any]:
        """Return the counts of checks and the first contradiction as a dict of builtin types."""
        summary: dict[str, Any] = {"checked": dict(self.checked)}
        if self.breach is not None:
            breach = {key: value for key, value in asdict(self.breach).items() if value is not None}
            summary["breach"] = {**breach, "index": list(self.breach.index)}
        return summary


class _Walk:
    """Checks the tensors of one run against each other, such as `param` against `master`.

    Args:
        side: the run.
        log: see `Consistency.of`.
        checked: counts what was looked at.
    """

    def __init__(self, side: Recording, log: OracleLog, checked: Counter[str]) -> None:
        self._trace = side.trace
        self._log = log
        self._cell = side.cell
        self._shown = RunView(side.trace, checked)
        self._state: EntriesByName = {}
        self._gradients: Mapping[str, list[Entry]] = {}
        self._reduced: Mapping[str, list[Entry]] = {}
        self._norms: Mapping[str, list[Entry]] = {}
        dtypes = self._trace.dtypes()
        resident = side.cell.primary_weight == "quantized"
        self._quantized = dict.fromkeys(stored_quantized(dtypes, resident=resident)).keys()
        # A master of fewer bits, or with a compensation, shows another weight than was cast.
        self._coarse = {
            name
            for kind, names in dtypes.items()
            for name, dtype in names.items()
            if kind == "compensation" or (is_beside_masters(kind) and dtype in ("float16", "uint8"))
        }
        self._updated = dtypes.get("master", {})
        self._with_moments = {*dtypes.get("exp_avg", {}), *dtypes.get("momentum_buffer", {})}
        self._quantization = None
        if quantized_kinds.shows_quantized(side.cell, dtypes):
            # Only here, so that other runs import no number format.
            from pytest_precision.probes.identities.quantization import Quantization

            self._quantization = Quantization(side.cell, self._shown, self._quantized, self._coarse)
        if log.starts:
            checked["master is not rounded since the update before"] += log.starts

    def judged(self) -> Iterator[Judged]:
        """Yield the result of each check of the run in causal order: a contradiction, or None."""
        for moment in self._trace.moments:
            tensors = self._trace.held(moment, IDENTITY_KINDS)
            if moment.phase == "forward_backward":  # an evaluation may be of other weights
                yield from self._used(moment, tensors["used_param"])
                if self._quantization is not None:
                    yield from self._quantization.used(moment, tensors, self._state)
            yield from self._summed(moment, tensors)
            yield from self._normed(moment, tensors["grad_norm"])
            yield from self._cast(moment, tensors)
            if moment.phase == "optimizer_step":
                yield from self._read_back(moment)
                yield from self._still(moment, tensors["param"])
                if self._quantization is not None:
                    yield from self._quantization.updated(moment, tensors, self._state)
                norms = self._shown.numbers(self._norms).values()
                shown = tensors["loss_scale"] if norms else {}
                overflowed = not all(map(isfinite, norms))
                yield from self._scaled(moment, shown, overflowed=overflowed)
            if moment.phase == "skip":
                yield from self._scaled(moment, tensors["loss_scale"], overflowed=True)
            if moment.phase == "load" and self._quantization is not None:
                self._quantization.loaded()
            if moment.phase not in STATELESS:  # a layout after a swap may hide what another shows
                self._state = {kind: tensors[kind] for kind in RESIDENT}

    def _used(self, moment: Moment, used_entries: Mapping[str, list[Entry]]) -> Iterator[Judged]:
        """Yield weights that a forward used but that differ from the stored weights."""
        for name, entries in used_entries.items():
            kind = "param" if name in self._state.get("param", {}) else "master"
            stored = self._state.get(kind, {}).get(name)
            if stored is None or (kind == "master" and name in self._quantized | self._coarse):
                continue
            claim = self._shown.claim(moment, "used_param", name, f"the {kind} before it")
            yield from self._follows(claim, entries, stored)

    def _cast(self, moment: Moment, tensors: EntriesByName) -> Iterator[Judged]:
        """Yield contradictions where a stored weight is not its master weight cast to its dtype."""
        for name, entries in tensors["param"].items():
            masters = tensors["master"].get(name)
            if masters is None or name in self._quantized | self._coarse:
                continue
            if [(e.file, e.offset) for e in masters] == [(e.file, e.offset) for e in entries]:
                continue  # the same memory
            yield from self._follows(
                self._shown.claim(moment, "param", name, "its master"), entries, masters
            )

    def _read_back(self, moment: Moment) -> Iterator[Judged]:
        """Yield master weights that were rounded to fewer bits between two updates."""
        for rounding in self._log.read_back:
            if rounding.step == moment.step:
                cause = f"it was rounded to {rounding.grid} in between"
                at = tuple(rounding.index), rounding.expected, rounding.got
                yield Contradiction(
                    rounding.step, "master", rounding.name, LEFT, *at, None, cause=cause
                )

    def _still(self, moment: Moment, params: Mapping[str, list[Entry]]) -> Iterator[Judged]:
        """Yield contradictions where a step has moved a weight that the workload freezes.

        Others may move a frozen weight on purpose, as an average of weights that is in the model.
        """
        for name in self._log.frozen:
            entries, before = params.get(name), self._state.get("param", {}).get(name)
            if (
                not entries
                or not before
                or name in self._quantized
                or self._shown.same(entries, before)
            ):
                continue
            got, exact = self._shown.whole(entries), self._shown.whole(before)
            if got is None or exact is None or got.shape != exact.shape:
                continue
            claim = self._shown.claim(moment, "param", name, FROZEN)
            breach = claim.broken(got, exact.double(), 0.0)
            if breach is None:
                continue
            # One number has a factor whatever moved it, and an optimizer may be given a weight that
            # it leaves alone, for want of a gradient.
            decayed = breach.factor is not None and got.numel() > 1
            if decayed or name in self._with_moments or name in self._reduced:
                yield breach

    def _follows(self, claim: Claim, entries: list[Entry], source: list[Entry]) -> Iterator[Judged]:
        """Yield a contradiction if a tensor is not `source` rounded to the tensor's dtype."""
        if self._shown.same(entries, source):
            return
        exact = self._shown.whole(source)
        if exact is None:
            return
        for entry in entries:
            if entry.offset is None or entry.shape != exact.shape:
                continue
            part = region(exact, entry).reshape(entry.piece)
            breach = identity_rules.cast(claim, self._trace.tensor(entry), part)
            if breach is not None:
                yield breach
                return

    def _summed(self, moment: Moment, tensors: EntriesByName) -> Iterator[Judged]:
        """Yield contradictions where a reduced gradient is not the sum of all ranks' gradients."""
        if moment.phase == "forward_backward":
            alone = self._dealt(moment, tensors["loss"])
            self._gradients = tensors["grad"] if alone and self._log.shown_by == "phases" else {}
        if moment.phase != "reduce_grads":
            return
        self._reduced = tensors["reduced_grad"]
        breaches: list[Judged] = []
        for name, entries in self._reduced.items():
            parts = self._gradients.get(name, [])
            got = self._shown.whole(entries) if parts else None
            if got is None or any(part.offset is None for part in parts):
                continue
            claim = self._shown.claim(
                moment, "reduced_grad", name, "the sum of grad over the ranks"
            )
            breaches.append(identity_rules.summed(claim, self._trace, got, entries, parts))
        yield from identity_rules.everywhere(breaches)

    def _dealt(self, moment: Moment, losses: Mapping[str, list[Entry]]) -> bool:
        """Return whether each rank computed microbatches, and no two ranks the same one."""
        ranks = self._trace.world_size_at(moment)
        entries = [entry for loss_entries in losses.values() for entry in loss_entries]
        computed = {entry.place for entry in entries}
        dealt = len(computed) == len(entries) and len({e.rank for e in entries}) == ranks
        return ranks == 1 or dealt

    def _normed(self, moment: Moment, norms: Mapping[str, list[Entry]]) -> Iterator[Judged]:
        """Yield a contradiction if the gradient norm is not that of the weights' gradients."""
        if moment.phase != "clip_grads" or moment.operation != "train":
            return
        self._norms = norms
        if self._log.shown_by != "phases" or not self._log.by_l2:
            return
        scale: float | None = 1.0  # what reduced gradients are multiplied by
        if self._cell.precision == "fp16":
            scale = self._shown.numbers(self._state.get("loss_scale", {})).get("scale")
        if not scale:
            return
        wholes = [
            self._shown.whole(pieces)
            for name, pieces in self._reduced.items()
            if name in self._updated and not pieces[0].local
        ]
        gradients = [gradient for gradient in wholes if gradient is not None]
        if not wholes or len(gradients) < len(wholes):
            return
        for name, entries in norms.items():
            norm = self._shown.whole(entries)
            if norm is not None:
                claim = self._shown.claim(moment, "grad_norm", name, "the norm of reduced_grad")
                yield identity_rules.normed(claim, norm, gradients, scale)

    def _scaled(
        self, moment: Moment, shown_entries: Mapping[str, list[Entry]], *, overflowed: bool
    ) -> Iterator[Judged]:
        """Yield, per recorded loss-scale value, how it breaks `GradScaler`'s rule; None if not."""
        if self._log.shown_by != "phases" or not self._log.by_loss_scale:
            return
        before = self._shown.numbers(self._state.get("loss_scale", {}))
        if not before:
            return
        rule = LossScale()
        rule.load_state_dict(before)
        rule.update(overflowed=overflowed)
        for name, got in self._shown.numbers(shown_entries).items():
            claim = self._shown.claim(moment, "loss_scale", name, "what its rule makes of it")
            exact_tensor = torch.tensor(rule.state_dict()[name], dtype=torch.float64)
            yield claim.broken(torch.tensor(got, dtype=torch.float64), exact_tensor, 0.0)
