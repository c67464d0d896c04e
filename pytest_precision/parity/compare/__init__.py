"""Comparison of two recorded training runs: pair their tensors, and judge the differences."""
