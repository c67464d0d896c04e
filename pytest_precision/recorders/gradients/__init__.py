"""Losses and gradients of a step once more, by the plainest loop that the workload allows."""
