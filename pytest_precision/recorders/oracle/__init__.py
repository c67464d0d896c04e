"""Oracle: check each weight update against the workload's declared optimizer rule in fp64."""
