"""Assign GPUs to a group of ranks, and lock them for one process at a time."""
