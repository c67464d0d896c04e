"""The oracle: one step of the optimizer that the workload declares, in fp64, with its rounding."""
