"""Auditing: what a set-up will store, compute, reduce and update in, read before anything trains.

The data flows one way. `setup` takes what a training loop was built of, `optimizers` and `masters`
say how each tensor is updated, `sharding` and `pipeline` what is computed, reduced and sent, and
`table` puts it together, one row per tensor. The modules of `checks` read these and yield findings;
`audit` collects them; `text` writes them.
"""
