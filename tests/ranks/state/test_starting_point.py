"""Every job starts from the same state, whatever the job before it did."""

from __future__ import annotations

import signal

import pytest

from pytest_precision import PrecisionLeakWarning


def disturb():
    import random

    import numpy as np
    import torch

    torch.rand(3)
    np.random.rand(3)
    random.random()
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.set_flush_denormal(True)


def state():
    import random

    import numpy as np
    import torch

    return {
        "torch": torch.rand(1).item(),
        "numpy": np.random.rand(),
        "random": random.random(),
        "threads": torch.get_num_threads(),
        "dtype": str(torch.get_default_dtype()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "unset memory": torch.empty(2).isnan().all().item(),
        "subnormal": (torch.tensor([1e-38]) * 0.1).item() > 0,
    }


def test_a_job_starts_from_a_known_state(pool):
    """Seeds, threads, dtype, determinism, memory and subnormals, on every rank alike."""
    import random

    import numpy as np

    random.seed(0)
    np.random.seed(0)
    with pytest.warns(PrecisionLeakWarning):
        pool.run(2, disturb)
    for found in pool.run(2, state):
        assert found == {
            "torch": 0.49625658988952637,  # the first of torch.manual_seed(0)
            "numpy": np.random.RandomState(0).rand(),
            "random": random.Random(0).random(),
            "threads": 1,
            "dtype": "torch.float32",
            "deterministic": True,
            "unset memory": True,
            "subnormal": True,
        }


def on_signals():
    return [signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM)]


def test_a_rank_hears_what_its_caller_does(pool):
    """Its fork server ignores both; a job may want to hear that it has to end."""
    assert pool.run(1, on_signals) == [on_signals()]
