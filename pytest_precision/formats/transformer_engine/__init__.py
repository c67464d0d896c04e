"""Transformer Engine's own tensors, read and written as operands of `formats`."""
