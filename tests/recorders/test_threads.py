"""Parts of large tensors are computed on several threads as on one."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from pytest_precision.recorders.threads import FEWEST, computed


@pytest.mark.parametrize("cores", [1, 2])
def test_parts_keep_their_order_and_record_no_graph(
    cores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on a thread, which has an autograd mode of its own."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    parts = [torch.full((3,), float(number), requires_grad=True) for number in range(2 * FEWEST)]
    names: set[str] = set()

    def doubled(part: torch.Tensor) -> torch.Tensor:
        names.add(threading.current_thread().name)
        return part * 2

    outcomes = computed(doubled, parts, torch.device("cpu"))
    assert [outcome[0].item() for outcome in outcomes] == [2.0 * n for n in range(2 * FEWEST)]
    assert not any(outcome.requires_grad for outcome in outcomes)
    assert (threading.main_thread().name in names) == (cores == 1)
