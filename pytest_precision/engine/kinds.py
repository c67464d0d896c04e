"""The table of kinds of tensors to record (loss, gradient, moment), causes before effects.

The order of rows is that of the comparison, and a row says how two sides may differ in a kind.
State that an optimizer keeps under a name of its own is a kind without a row; see `causal_rank`.
What one module alone asks of kinds, it lists itself: what is judged in one run
(`parity/exempt.py`, `consistency.py`), what a step shows after its losses
(`parity/compare/first_cause.py`), what is listed also where both sides agree
(`probes/proposals/tensor_needs.py`), which kinds have a row in the docs
(`report/page/doc_links.py`).
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Kind(NamedTuple):
    """How tensors of one kind (a loss, a gradient, a moment) are described and compared.

    Attributes:
        meaning: what they are, in words, for the reader of a report.
        dtype: torch's name of their dtype, or what decides it.
        local: whether every rank has a tensor of its own under each name, which is neither a piece
            of a logical tensor nor a replica.
        lasts: `state` outlives a step and is shown after every operation. A `setting` outlives it
            too, but is not shown after an update, which has already set the next step's. What is
            `passing` belongs to the phase that made it.
        weight: whether both sides start from the same values, so that only the change since then
            proves anything.
        optional: whether one side may lack a `tensor`, as some optimizers lack a hyperparameter, or
            the whole `kind`, as an engine may that shows its state in a way of its own; or whether
            the `value` may be another one, or none, where it has not agreed before.
        optional_beside: the kind that a side shows beside a tensor which the other side may lack.
        explanatory: whether it only says more about another kind, and is not compared.
        made_late: whether an optimizer may make it in its first step, so that a load may add it to
            what was saved before.
        discrete: whether its values are choices, of which none is close to another.
        of_groups: whether parameter groups hold it, so that it is no `hyper`.
        shown_by: the kind that shows the same tensors in use, so that an engine may hide this one.
        summed: whether a tolerance compares the sum of a step's tensors where two sides have
            different numbers of them.
        once_moved: whether tensors are shown only once they are not as before the first update, so
            that one which is not shown is as it was then, if the trace says what it was.
        restored: whether a load must restore it although it is passing, since it decides about
            steps that come much later.
    """

    meaning: str
    dtype: str
    local: bool = False
    lasts: Literal["passing", "setting", "state"] = "state"
    weight: bool = False
    optional: Literal["", "tensor", "kind", "value"] = ""
    optional_beside: str = ""
    explanatory: bool = False
    made_late: bool = False
    discrete: bool = False
    of_groups: bool = False
    shown_by: str = ""
    summed: bool = False
    once_moved: bool = False
    restored: bool = False


KINDS = {
    "weight": Kind(
        "each weight that `parity.score` compares, after the declared cast",
        "of the weight",
        lasts="passing",
    ),
    "made_weight": Kind(
        "a fused weight, or a weight with its adapter, as an engine should hold it; not "
        "compared by itself",
        "of the weight",
        lasts="passing",
        explanatory=True,
    ),
    "wrong_weight": Kind(
        "a weight after a known mistake, such as a second cast; not compared by itself",
        "of the weight",
        lasts="passing",
        explanatory=True,
    ),
    "used_param": Kind(
        "each weight, as the forward reads it", "of the weight", lasts="passing", weight=True
    ),
    "used_quantized": Kind(
        "the bytes and scales that the GEMMs of a quantized layer read",
        "of the format",
        lasts="passing",
    ),
    "decision": Kind(
        "each discrete choice: a token's experts, whether the norm is clipped or a step skipped",
        "int64",
        lasts="passing",
        optional="tensor",
        discrete=True,
    ),
    "margin": Kind(
        "the distance of the chosen value to the next value; not compared",
        "float64",
        lasts="passing",
        explanatory=True,
    ),
    "output": Kind(
        "the output of each module for each token, in `parity.score`; not compared",
        "of the output",
        lasts="passing",
        explanatory=True,
    ),
    "logprob": Kind(
        "the log-probability of each token of a sequence", "of the log-probability", lasts="passing"
    ),
    "loss": Kind("the loss of each microbatch", "of the loss", lasts="passing", summed=True),
    "grad": Kind(
        "each rank's sum over its microbatches, for its part of a weight",
        "of the buffer",
        local=True,
        lasts="passing",
    ),
    "reduced_grad": Kind("the sum over all ranks", "of the buffer", lasts="passing"),
    "grad_norm": Kind(
        "the norm of all reduced gradients, before clipping",
        "float32",
        lasts="passing",
        optional_beside="clip_limit",
    ),
    "clip_limit": Kind(
        "the limit of the norm, if this limit is infinite; not compared",
        "float64",
        lasts="passing",
        explanatory=True,
    ),
    "final_grad": Kind(
        "each gradient as the optimizer reads it; in scripts only",
        "of the gradient",
        lasts="passing",
        optional="tensor",
    ),
    "lr": Kind("the learning rate of each parameter", "float64", lasts="setting", of_groups=True),
    "hyper": Kind(
        "every other hyperparameter of each parameter, such as weight decay",
        "of the option",
        lasts="setting",
        optional="tensor",
    ),
    "flag": Kind(
        "the training mode of the model, and of modules with another mode than the model; "
        "changed options of torch's modules and `requires_grad`",
        "bool",
        optional="kind",
        discrete=True,
    ),
    "loss_scale": Kind("the dynamic loss scale, and its count of good steps", "float64"),
    "step": Kind(
        "the optimizer's count of steps", "of the counter", made_late=True, of_groups=True
    ),
    "exp_avg": Kind("the first moment", "of the state", made_late=True),
    "exp_avg_sq": Kind("the second moment", "of the state", made_late=True),
    "master": Kind("the weight that the optimizer updates", "of the master", weight=True),
    "quantized": Kind("the bytes of quantized weights", "uint8", shown_by="used_quantized"),
    "scale": Kind("the scales of quantized weights", "of the format", shown_by="used_quantized"),
    "amax": Kind("the amaxes of quantized weights", "float32", shown_by="used_quantized"),
    "recorded_amax": Kind("the amaxes that delayed scaling has recorded", "float32", local=True),
    "param": Kind("the resident weight", "of the weight", weight=True, shown_by="used_param"),
    "state": Kind(
        "other tensors and numbers of the engine's checkpoint, such as an average of weights",
        "of the state",
    ),
    "extra_state": Kind(
        "what a module saves by `get_extra_state`, and named entries of an optimizer's state",
        "of the value",
        local=True,
        optional="tensor",
    ),
    "buffer": Kind("the model's buffers", "of the buffer", local=True),
    "rng": Kind("the states of torch's random number generators", "uint8", local=True),
    "average": Kind(
        "weights and buffers that no optimizer updates, such as an average, once they change",
        "of the weight",
        local=True,
        lasts="passing",
        optional="tensor",
        once_moved=True,
    ),
    "policy": Kind(
        "counts and settings of torch's schedulers and a `GradScaler`",
        "of the value",
        local=True,
        lasts="passing",
        optional="value",
        once_moved=True,
        restored=True,
    ),
    "host_rng": Kind(
        "the states of Python's and numpy's random number generators, once used",
        "uint8",
        local=True,
        lasts="passing",
        optional="value",
        once_moved=True,
    ),
    "attribute": Kind(
        "Python attributes of modules, optimizers and the engine, once they change, and "
        "numbers of hooks",
        "of the value",
        local=True,
        lasts="passing",
        optional="value",
        once_moved=True,
    ),
}
"""Name to row, causes before effects: a divergence is looked for in this order."""

STARTING_KINDS = frozenset(name for name, kind in KINDS.items() if kind.weight)
"""Kinds that start from the same values on both sides: only their changes prove anything."""

LOCAL_KINDS = frozenset(name for name, kind in KINDS.items() if kind.local)
"""Kinds of which each rank has tensors of its own, rather than shards of one."""

RESTORED_KINDS = frozenset(name for name, kind in KINDS.items() if kind.restored)
"""Passing kinds that a load must restore."""

SCORED_KINDS = frozenset(
    {"weight", "made_weight", "wrong_weight", "decision", "margin", "output", "logprob"}
)
"""Kinds that a side shows which scores and does not train."""

_ORDER = {kind: 2 * position for position, kind in enumerate(KINDS)}


def causal_rank(kind: str) -> int:
    """Return the place of a kind of tensor in causal order: those that cause others come first."""
    return _ORDER.get(kind, _ORDER["master"] - 1)


def is_made_late(kind: str) -> bool:
    """Return whether an optimizer may create state of this kind only in its first step."""
    return kind not in KINDS or KINDS[kind].made_late


def is_shown_once_moved(kind: str) -> bool:
    """Return whether a tensor of this kind is not shown while it is as before the first update."""
    return kind in KINDS and KINDS[kind].once_moved


def is_state(kind: str) -> bool:
    """Return whether tensors of this kind outlive a step, as moments do; True for unknown kinds."""
    return kind not in KINDS or KINDS[kind].lasts == "state"


def lasting(lasts: str) -> frozenset[str]:
    """Return kinds with lifetime `lasts`: "passing" (within one phase), "setting" or "state"."""
    return frozenset(name for name, kind in KINDS.items() if kind.lasts == lasts)
