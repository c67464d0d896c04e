"""Oracle: check each weight update against the workload's declared optimizer rule in fp64.

An update is computed by `stepped` of `AdamScalars` (`adam.py`) and of `SgdScalars` (`sgd.py`). In
`batch.py`, `Batch.ratios` compares it with that of the run, and `Judge` says which elements are
wrong.
"""
