"""Copies of the state before an update lie in memory that is kept from step to step."""

from __future__ import annotations

import torch

from pytest_precision.probes.declared_rule.oracle.held import HostCopies


def test_copies_lie_in_the_same_memory_at_each_step() -> None:
    """They have the values of each tensor, in its dtype, also where a step has fewer tensors."""
    copies = HostCopies()
    tensors = [torch.arange(3.0), torch.zeros(0), torch.ones(2).bfloat16(), torch.arange(5.0)]
    first = copies.of(tensors)
    assert all(map(torch.equal, first, tensors))
    assert [copy.dtype for copy in first] == [tensor.dtype for tensor in tensors]
    tensors[3].mul_(2)
    assert first[3].tolist() == [0, 1, 2, 3, 4]  # a copy, not the tensor
    [second] = copies.of([tensors[3]])
    assert second.tolist() == [0, 2, 4, 6, 8]
    assert second.data_ptr() == first[0].data_ptr()
