"""Words of docs/evidence/optimizers.md: why an optimizer differs or refuses, by its source."""

INTRODUCTION = """\
# Optimizers

Every optimizer class of {packages} packages, {classes} in all, saved by its own `state_dict` after
two steps of four and loaded into a new one: does it go on where it stopped? `ci/optimizers` runs
them all on a CPU and writes this page. Ask the same of yours in a cell with
`train2-save-load-train2`.

*agree*: weights, state and rates are those of the run without an interruption, bit for bit.
*refuse*: the optimizer itself raises. *still*: no weight moves. *differ*: the first difference, and
whether the weights after the last step agree. Where no weight moves in four steps, there are
sixteen.
"""

_TO_FP32 = (
    "its `running_lower_bound` is fp64, which torch's `load_state_dict` [casts](findings.md) to "
    "the dtype of the parameter"
)

CAUSES = {
    "heavyball LATHER": f"{_TO_FP32}: the preconditioner of the third step is rounded otherwise",
    "heavyball PSGDKron": f"{_TO_FP32}: the preconditioner of the third step is rounded otherwise",
    "heavyball PSGDPRO": f"{_TO_FP32}; in four steps that moves no weight",
    "heavyball QSGD": f"{_TO_FP32}; in four steps that moves no weight",
    "heavyball SFAdamW": (
        "its `state_dict` drops options that begin with `_` (`chainable.py`, line 2457): "
        "`_sf_step` marks the step that was added to `weight_sum`, and the next step makes it anew"
    ),
    "timm Adahessian": (
        "its `generator` draws the signs that the Hessian is estimated with, starts from a seed "
        "of its own and is not in the `state_dict` (`adahessian.py`, line 55): a resumed run draws "
        "the first signs again"
    ),
}
"""Package and class to why it differs."""

REFUSALS = {
    "bitsandbytes AdEMAMix32bit": (
        "its first state has the shape of the weight, and the step on a CPU takes its rows 0 and 1 "
        "for two moments (`backends/cpu/ops.py`, line 387)"
    ),
    "bitsandbytes PagedAdEMAMix32bit": "as `AdEMAMix32bit`",
    "pytorch_optimizer AdaLOMO": "it updates in `fused_backward` and has no `step`",
    "pytorch_optimizer LOMO": "it updates in `fused_backward` and has no `step`",
    "torch SparseAdam": "it takes sparse gradients alone",
    "torchao CPUOffloadOptimizer": "it needs a GPU",
}
"""Package and class to why it refuses."""

JUDGED = """
## By a checkpoint of torch's

Through `torch.distributed.checkpoint.state_dict`, which an `Engine` saves with, three classes that
go on by their own `state_dict` do not: `StableSPAM` [forgets its count](findings.md),
`DAdaptSGD` [all of its state](findings.md), and `LoRARite` is refused in words, since it keeps
its state at the first weight of each pair alone.

## Judged by a rule

In an `Engine`, of {ran} classes in a workload that declares their rule, {judged} were judged,
{alone} left alone because
[they may follow another rule](../reference/judgements.md#which-optimizers-are-judged), and
{accused} accused.
"""

ACCUSED: dict[str, str] = {}
"""Package and class to why the oracle is right not to find its rule in it."""
