"""Planted defects that CI leaves to the nightly run, each with the entry that CI has instead.

That one is refused by the same gate, after the same phase and by the same rule, and is of as many
sides; and with the same kind of tensor, but where two sides or two moments are compared, which is
done alike for all kinds. Each defect of a real stack stays in CI, as do the entries that
no gate refuses for want of a property of the workload.
"""

SHOWN_BY = {
    # agreement, the candidate
    "LosesFullBuckets": "PartialLabelledReplicate",
    "RoundsBuffers": "floored",
    "EvalLeavesGradients of the candidate": "SameBits in nvfp4",
    "LoadsModelOnly of the candidate": "LosesBetasOnLoad of the candidate",
    "LoadsNothing of the candidate": "LosesBetasOnLoad of the candidate",
    "RankDrift of the candidate": "LocalAmaxes in fp8_delayed",
    "ColumnwiseWeights in mxfp8": "SameBits in nvfp4",
    "LosesDecayOnLoad of the candidate": "LosesBetasOnLoad of the candidate",
    "LosesEpsOnLoad of the candidate": "LosesBetasOnLoad of the candidate",
    "DoubledGrads of the candidate": "ExpertGradDivisor",
    "LooksAtOneTensor of the candidate": "DecaysOnOverflow of the candidate",
    "LosesTheAverageByItself": "LosesTheAverage",
    "StaleWeights in mxfp8": "StaleWeights in fp8_current",
    "ColumnwiseInputs in nvfp4": "SameBits in nvfp4",
    "RoundsBeforeAccumulating in nvfp4": "RoundsBeforeAccumulating",
    # agreement, both sides
    "LocalExperts": "OneLocal",
    "TailStaysLocal": "OneLocal",
    "BoundaryStaysLocal of both sides": "OneLocal",
    "PartialLabelledReplicate of both sides": "OneLocal",
    # consistent, both sides
    "MeanExperts": "LastTwice",
    "TiedReducedTwice": "LastTwice",
    "Averages": "Averaged",
    "ReducesTwice": "Averaged",
    "Maximum": "LastTwice",
    "FirstRankAlone": "LastTwice",
    "SwappedBuckets": "LastTwice",
    "ReducedBeforeTheLast": "LastTwice",
    "UnscaledTwice": "NormOfOne",
    "ExpertGradDivisor of both sides": "LastTwice",
    "HalfTheNorm": "NormOfOne",
    "HalfTheNorm in fp16": "NormOfOne",
    "OtherWeights in bf16": "OtherWeights",
    "CachedByVersion of both sides": "StaleBytes",
    "GrowsEachStep": "NeverGrows",
    "PerToken": "Averaged",
    "DecaysFrozen of both sides": "TrainsFrozen of both sides",
    "Halved of bf16 weights": "Halved of quantized weights",
    "OneStepOld of bf16 weights": "Halved of quantized weights",
    # declared_rule, both sides
    "ClipsEach": "AdamW twice",
    "ClipsToTwice": "AdamW twice",
    "ThreeTimes": "FullRate",
    "ScheduledTwice": "FullRate",
    "GradientsInBf16Twice": "AdamW twice",
    "ClipsCopies of both sides": "NoClip",
    "SyntheticStep of both sides": "AdamW: step ahead",
    "warmup_subtracted_twice of both sides": "FullRate",
    "AdamW: other group": "OneRate",
    "AdamW: next rate": "EvalSchedules",
    "AdamW: bf16 w": "RoundsMasters",
    "clip: unclipped": "NoClip",
    "clip: one_by_one": "AdamW twice",
    # undisturbed, both sides
    "LoadsNothing": "LoadsModelOnly",
    "LoadsRowwiseOnly of both sides": "PaddedOffsets of both sides",
    # vacuity, both sides
    "UsesDummies of both sides": "unquantized",
    "RoundsBeforeAccumulating of both sides": "unquantized",
    "NeverSteps of both sides": "LossIsNaN of both sides",
    "ZeroGrads of both sides": "LossIsNaN of both sides",
    # workload_gradients, both sides
    "DropsLast": "DropsLast in nvfp4",
    "RepeatsFirst": "RepeatsFirst in fp8_block",
    "NeverDivided in fp8_delayed": "NeverDivided",
    "StepBefore in mxfp8": "EvaluationData",
    "DataFromTheStart in fp8_block": "DataFromTheStart",
    "DoubledExperts in mxfp8": "DoubledExperts",
    "NegatedExpert in nvfp4": "NegatedExpert",
    "DividedTwice": "DividedTwice in mxfp8",
    "StepBefore": "EvaluationData",
    "NoRouter": "LostExpert in fp8_delayed",
    "LostExpert": "LostExpert in fp8_delayed",
    "SwappedExperts": "EvalLeavesGradients",
    "TiedTwice": "TiedTwice in fp8_current",
    "TiedGarbage": "EvalLeavesGradients",
    "PerMicrobatchMean of both sides": "MeanOfMeans",
    "DirtyAfterEval of both sides": "EvalLeavesGradients",
    "Doubles": "DoubledExperts",
}
"""Name of an entry that the nightly run has to the name of one that CI has."""

VARIATIONS_SHOWN_BY = {
    "other_scatter": "SplitsMicrobatches",
    "split_k_in_fp32": "SplitsMicrobatches",
    "split_k": "rounds_once",
    "norm_of_norms": "SplitsMicrobatches",
    "other_algebra": "check/test_proposal_lines.py",
    "SumsBackwards": "ReducesInBf16",
    "shards": "layouts/test_agreement.py",
    "dropout_of_nothing": "layouts/test_agreement.py",
    "interrupted": "layouts/test_agreement.py",
    "row_parallel": "rounds_once",
    "fused_adam_of_torch": "other_algebra",
    "checkpoint_of_another_layout": "layouts/megatron/test_experts.py",
    "stochastic_rounding": "layouts/test_precisions.py",
    "quantized_shards": "layouts/megatron/test_distributed_optimizer.py",
    "quantized_primary_weights": "layouts/test_precisions.py",
    "recomputation": "layouts/test_recomputation.py",
}
"""Name of a variation to that of one, or to the file, that shows as much in CI."""

LINES_BY_DAY = (
    "EvalSticks",
    "adamw_on_bf16_parameters",
    "SyntheticStep",
    "PaddedOffsets",
    "PerMicrobatchMean",
    "ClipsCopies",
)
"""Defects of real stacks whose line CI has named, too, one of each kind of error; of the others the
nightly run does."""
