"""Auditing: in which dtypes a model and its optimizer will store, compute, reduce and update.

The data flows one way. `setup` takes what a training loop was built of, `optimizer_facts` and
`master_weights` say how each tensor is updated, `parallelism` what is computed, reduced and sent,
and `facts` puts it together, one row per tensor. The modules of `checks` read these and yield
findings; `audit` collects them; `text` writes them.
"""
