"""Words of docs/evidence/optimizers.md: why an optimizer differs or refuses, by its source."""

INTRODUCTION = """\
# Optimizers

`ci/optimizers` saves {classes} optimizers of {packages} packages by their own `state_dict` after
two steps of four, loads each state into a new optimizer, and writes this page. An optimizer
*agrees* if weights, state and learning rates equal the uninterrupted run bit for bit. An optimizer
*refuses* if its step or load raises an error, and is *still* if no weight changes in 16 steps.
"""

CAUSES = {
    "heavyball LATHER": (
        "torch's `load_state_dict` [casts](findings.md) its fp64 `running_lower_bound` to the "
        "dtype of the parameter"
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
        "resumed run draws the signs of the first steps"
    ),
}
"""Package and class to why it differs."""

REFUSALS = {
    "bitsandbytes AdEMAMix32bit": (
        "the step on a CPU reads rows 0 and 1 of its first state as two moments "
        "(`backends/cpu/ops.py`, line 387)"
    ),
    "bitsandbytes PagedAdEMAMix32bit": "as `AdEMAMix32bit`",
    "pytorch_optimizer AdaLOMO": "it updates in `fused_backward` and has no `step`",
    "pytorch_optimizer LOMO": "it updates in `fused_backward` and has no `step`",
    "torch SparseAdam": "it supports sparse gradients only",
    "torchao CPUOffloadOptimizer": "it needs a GPU",
}
"""Package and class to why it refuses."""

JUDGED = """
## Checkpoints of torch

Three more classes do not resume through `torch.distributed.checkpoint.state_dict`, which an
`Engine` uses: `StableSPAM` [loses its step count](findings.md), `DAdaptSGD` loses
[all state](findings.md), and `LoRARite` is refused, since only the first weight of each pair has a
state.

## Optimizers that a judgement checks

The judgement [the rule of the optimizer](../reference/judgements.md#the-rule-of-the-optimizer)
checked {judged} of {ran} classes; {alone} classes may have another rule, and {accused} failed.
"""

ACCUSED: dict[str, str] = {}
"""Package and class to why the oracle is right not to find its rule in it."""
