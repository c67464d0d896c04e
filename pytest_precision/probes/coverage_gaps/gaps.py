"""List features, such as clipping, that a run never used, so that its verdict does not cover them.

A defect in clipping shows in no run that never clips, and one in a checkpoint in none that loads
nothing. The trace has all that is needed to say so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import torch

from pytest_precision.engine.decisions import CLIPPED
from pytest_precision.matrix.cell import Cell
from pytest_precision.matrix.sequence import LOADS
from pytest_precision.matrix.tensor_key import TensorKey
from pytest_precision.parity.recorded_case import RecordedCase
from pytest_precision.trace.data_log import DataLog
from pytest_precision.trace.header import WARN_ONLY
from pytest_precision.trace.moment import Moment
from pytest_precision.trace.reader import Entry, Trace

STEPS_AFTER_A_LOAD = 2
"""Steps that show a state which a checkpoint lost: the first one makes it, the second reads it."""


class Exercised:
    """What one run did: its weight decays, learning rates, clipped steps, microbatches and tokens.

    Attributes:
        trace: of the run.
        cell: where it ran.
        decays: the different numbers by which weights decay.
        rates: train step to the learning rates in it.
        clipped: in each train step with a limit of the norm, whether the norm was above it.
        changed: steps in which something changed gradients between their reduction and the update.
        microbatches: in each train step, how many losses were reported.
        tokens: train step to the different numbers of tokens of its microbatches.
    """

    def __init__(self, trace: Trace, cell: Cell, data: DataLog) -> None:
        self.trace = trace
        self.cell = cell
        self.tokens = {step: counts for step, counts in data.tokens.items() if step}
        self.decays: set[float] = set()
        self.rates: dict[int, set[float]] = defaultdict(set)
        self.clipped: list[bool] = []
        self.changed: set[int] = set()
        self.microbatches: dict[int, int] = defaultdict(int)
        for moment in trace.moments:
            self._read(moment)
        if not self.clipped:
            self._read_clips_of_loop()

    def _read_clips_of_loop(self) -> None:
        """Read from gradients in which steps a loop clipped: it does not say so, as engines do."""
        reduced: dict[tuple[int, int, str], Entry] = {}
        limited: dict[tuple[int, str], bool] = {}
        kinds = {"reduced_grad", "final_grad", "grad_norm", "clip_limit"}
        for moment in self.trace.moments:
            if moment.operation != "train":
                continue
            for entry in self.trace.entries(moment, kinds):
                place = moment.step, entry.rank, entry.name
                if entry.kind == "reduced_grad":
                    reduced[place] = entry
                elif entry.kind == "final_grad" and place in reduced:
                    if not self.trace.same_bytes(reduced[place], self.trace, entry):
                        self.changed.add(moment.step)
                elif entry.kind == "clip_limit":  # which is recorded where it is infinite
                    limited[moment.step, entry.name] = False
                elif entry.kind == "grad_norm":
                    limited.setdefault((moment.step, entry.name), True)
        steps = {step for (step, _), limit in limited.items() if limit}
        self.clipped = [step in self.changed for step in steps]

    def _read(self, moment: Moment) -> None:
        for entry in self.trace.entries(moment, {"loss", "lr", "hyper", "decision"}):
            if entry.kind == "loss" and moment.operation == "train":
                self.microbatches[moment.step] += 1
            if entry.kind == "loss" or entry.offset is None:
                continue
            value = self.trace.tensor(entry)
            if entry.kind == "hyper":
                # An option may be anything, such as a text.
                option = TensorKey.of(entry.kind, entry.name).part
                if option == "weight_decay" and value.numel() == 1:
                    self.decays.add(float(value))
            elif entry.kind == "lr" and moment.operation == "train":
                self.rates[moment.step].add(float(value))
            elif entry.name == CLIPPED and moment.operation == "train":
                self.clipped.append(bool(value))


def clipping(run: Exercised) -> str:
    """Return a note that gradients were clipped in no step or in every step; else empty."""
    if not run.clipped:
        return "" if run.changed else "clipping: no limit"
    if all(run.clipped):
        return "clipping: active in every step"
    return "" if any(run.clipped) else "clipping: active in no step"


def equal_rates(run: Exercised) -> str:
    """Return a note that all parameters had the same learning rates; empty if they had not."""
    if any(len(rates) > 1 for rates in run.rates.values()):
        return ""
    return "learning rates: the same for all parameters" if run.rates else ""


def schedule(run: Exercised) -> str:
    """Return a note that the learning rates never changed; empty if they did."""
    constant = len(run.rates) > 1 and len(set(map(frozenset, run.rates.values()))) == 1
    return "learning rates: the same in all steps" if constant else ""


def equal_decay(run: Exercised) -> str:
    """Return a note that all parameters had the same weight decay, or none; else empty."""
    values = run.decays or {0.0}
    if values == {0.0}:
        return "weight decay: none"
    return "weight decay: the same for all parameters" if len(values) == 1 else ""


def accumulation(run: Exercised) -> str:
    """Return a note that no step had several microbatches to accumulate; else empty."""
    most = max(run.microbatches.values(), default=0)
    return "accumulation: one microbatch a step" if most == 1 else ""


def tokens(run: Exercised) -> str:
    """Return a note that all microbatches of a step always had equally many tokens; else empty."""
    several = [counts for step, counts in run.tokens.items() if run.microbatches[step] > 1]
    alike = several and all(len(counts) == 1 for counts in several)
    return "token counts: the same in all microbatches of a step" if alike else ""


def start(run: Exercised) -> str:
    """Return a note that all initial weights are bf16 numbers, which hides rounding; else empty."""
    entries = run.trace.entries(run.trace.moments[0], {"master"})
    weights = [
        run.trace.tensor(entry)
        for entry in entries
        if entry.dtype == "float32" and entry.offset is not None
    ]
    all_bf16 = weights and all(torch.equal(w, w.bfloat16().float()) for w in weights)
    return "weights: all start as numbers of bf16" if all_bf16 else ""


def buffers(run: Exercised) -> str:
    """Return a note that the model had no buffer; empty if it had one."""
    return "" if "buffer" in run.trace.dtypes() else "buffers: none"


def frozen(run: Exercised) -> str:
    """Return a note that every parameter was trained, and none frozen; else empty."""
    dtypes = run.trace.dtypes()
    trained = dtypes.get("reduced_grad", {}).keys()
    return "" if dtypes.get("param", {}).keys() - trained else "frozen parameters: none"


def loads(run: Exercised) -> str:
    """Return a note that no load was followed by 2 train steps, which test it; else empty."""
    names = run.cell.operations
    after = (
        names[at:].count("train") >= STEPS_AFTER_A_LOAD
        for at, name in enumerate(names)
        if name in LOADS
    )
    return "" if any(after) else f"loads: none before {STEPS_AFTER_A_LOAD} steps"


def determinism(run: Exercised) -> str:
    """Return a note that nondeterministic operators were allowed to run; else empty."""
    only_warned = run.trace.header.environment.get("deterministic") == WARN_ONLY
    return "deterministic algorithms: only warned about" if only_warned else ""


GAP_CHECKS: tuple[Callable[[Exercised], str], ...] = (
    clipping,
    equal_rates,
    schedule,
    equal_decay,
    accumulation,
    tokens,
    start,
    buffers,
    frozen,
    loads,
    determinism,
)


def gaps(case: RecordedCase) -> list[str]:
    """List what the candidate's run never did, so that nothing is proved of it."""
    side = case.candidate
    return unexercised(side.trace, side.cell, side.log(DataLog))


def unexercised(trace: Trace, cell: Cell, data: DataLog) -> list[str]:
    """List features that a run never used, each as a short phrase.

    Args:
        trace: of the run.
        cell: where it ran.
        data: what the workload gave it.
    """
    run = Exercised(trace, cell, data)
    return [words for words in (check(run) for check in GAP_CHECKS) if words]
