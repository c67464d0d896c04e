"""Rules: what each rule is about, for those who read a finding without having seen the set-up."""

from __future__ import annotations

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
    "in-two-groups": "Parameters are in two groups and are updated twice in each step.",
    "decay-on-vectors": "Weight decay pulls norms and biases to zero.",
    "option-ignored": "A group has an option that its optimizer does not read.",
    "option-refused": "The optimizer does not take an option that it was given.",
    "reduce-below-fp32": "Gradients are summed over ranks or microbatches below fp32.",
    "output-rounded": "Outputs are cast to fewer digits than they were computed in.",
    "stage-declares-other": "A pipeline stage returns another dtype than it declares.",
    "stage-sends-rounded": "A pipeline stage sends fewer digits than it computes.",
    "endless-schedule": "A schedule spreads its rates over more steps than any training has.",
    "length-unknown": "The number of steps is computed from data that have no length.",
    "schedules-another": "A scheduler sets the rates of an optimizer that is not the one in use.",
    "tied": "One weight has several names.",
    "tie-broken": "Embeddings that the model says are tied are two tensors.",
}
"""Name to one sentence."""
