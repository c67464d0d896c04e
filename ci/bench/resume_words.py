"""Words of docs/evidence/optimizers.md: why an optimizer differs or refuses, by its source."""

INTRODUCTION = """\
# Optimizers

Does an optimizer go on where it stopped? Each class of {packages} packages, {classes} in all, is
saved by its own `state_dict` after two steps of four and loaded into a new one. `ci/optimizers`
runs them on a CPU and writes this page. Test yours in a cell with `train2-save-load-train2`.

*agree*: weights, state and rates are those of the uninterrupted run, bit for bit. *refuse*: the
optimizer raises. *still*: no weight moves in 16 steps.
"""

CAUSES = {
    "heavyball LATHER": (
        "its `running_lower_bound` is fp64, which torch's `load_state_dict` [casts](findings.md) "
        "to the dtype of the parameter"
    ),
    "heavyball PSGDKron": "as `LATHER`",
    "heavyball PSGDPRO": "as `LATHER`",
    "heavyball QSGD": "as `LATHER`",
    "heavyball SFAdamW": (
        "its `state_dict` drops options that begin with `_` (`chainable.py`, line 2457); the next "
        "step makes `_sf_step` again"
    ),
    "timm Adahessian": (
        "its `generator` of signs is not in the `state_dict` (`adahessian.py`, line 55), so a "
        "resumed run draws the first signs again"
    ),
}
"""Package and class to why it differs."""

REFUSALS = {
    "bitsandbytes AdEMAMix32bit": (
        "the step on a CPU takes rows 0 and 1 of its first state for two moments "
        "(`backends/cpu/ops.py`, line 387)"
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

Through `torch.distributed.checkpoint.state_dict`, which an `Engine` uses, three further classes do
not go on: `StableSPAM` [forgets its count](findings.md), `DAdaptSGD`
[all of its state](findings.md), and `LoRARite` is refused, since only the first weight of each pair
has its state.

## Judged by a rule

Of {ran} classes in a workload that declares their rule, {judged} were judged, {alone} left alone
since [they may follow another rule](../reference/judgements.md#which-optimizers-are-judged), and
{accused} accused.
"""

ACCUSED: dict[str, str] = {}
"""Package and class to why the oracle is right not to find its rule in it."""
