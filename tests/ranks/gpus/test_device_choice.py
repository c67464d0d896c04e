"""Which GPU a rank gets is decided before CUDA starts, by an `nvidia-smi` made up here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from pytest_precision.ranks.gpus import own_device
from pytest_precision.ranks.gpus.devices import (
    VISIBLE_DEVICES,
    DeviceChoice,
    choice_of,
    listed_devices,
    visible_names,
)
from pytest_precision.ranks.gpus.own_device import choose_device, expect_chosen

TWO = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a1)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-b2)
"""

DIVIDED = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a1)
  MIG 3g.40gb     Device  0: (UUID: MIG-c3)
  MIG 3g.40gb     Device  1: (UUID: MIG-d4)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-b2)
"""

MIG = ("MIG-c3", "MIG-d4", "GPU-b2")


@pytest.fixture
def says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a program `nvidia-smi` into the path that prints a listing and ends with a status."""
    monkeypatch.delenv(VISIBLE_DEVICES, raising=False)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)

    def make(listing: str, status: int = 0) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(
            f"#!/bin/sh\n[ \"$1\" = -L ] && printf '%s' '{listing}'\nexit {status}\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return make


@pytest.mark.parametrize(
    ("listing", "names"), [(TWO, ("GPU-a1", "GPU-b2")), (DIVIDED, MIG), ("", ())]
)
def test_instances_stand_in_place_of_the_gpu_that_is_divided(says, listing, names) -> None:
    """CUDA shows no GPU whole that is in MIG mode."""
    says(listing)
    assert listed_devices() == names


def test_without_the_program_nobody_knows(says, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that fails, as without a driver, says no more than none."""
    says("", status=9)
    assert listed_devices() is None
    monkeypatch.setenv("PATH", "/nowhere")
    assert listed_devices() is None


@pytest.mark.parametrize(
    ("variable", "listed", "names"),
    [
        (None, ("GPU-a1", "GPU-b2"), ("GPU-a1", "GPU-b2")),
        ("1,0", ("GPU-a1", "GPU-b2"), ("1", "0")),
        ("GPU-b2, GPU-a", ("GPU-a1", "GPU-b2"), ("GPU-b2", "GPU-a")),
        ("1,-1,0", ("GPU-a1", "GPU-b2"), ("1",)),
        ("2", ("GPU-a1", "GPU-b2"), ()),
        ("MIG-d4,MIG-c3", MIG, ("MIG-d4", "MIG-c3")),
        ("MIG-d4,MIG-e5,MIG-c3", MIG, ("MIG-d4",)),
        ("", MIG, ()),
        (None, MIG, MIG),
    ],
)
def test_the_callers_list_is_what_there_is(variable, listed, names) -> None:
    """The variable counts in its order and by its names, as far as CUDA takes it."""
    assert visible_names(variable, listed) == names


def test_a_rank_that_shares_a_gpu_finds_it_under_its_local_rank(says) -> None:
    """Frameworks take `cuda:LOCAL_RANK`, and there is one device to see."""
    says(TWO.splitlines()[0])
    found = choose_device(local_rank=1, sharing=2, per_device=2)
    assert found == DeviceChoice("GPU-a1", 0, shared=True, name="GPU-a1", among=1)


def test_each_rank_sees_its_own_instance_alone(says) -> None:
    """A process sees one instance at most, and nccl joins no two of them."""
    says(DIVIDED)
    instances = len(MIG)
    second, first = choose_device(1, 2, 1), choose_device(0, 1, 1)
    assert second == DeviceChoice("MIG-d4", 0, shared=True, name="MIG-d4", among=instances)
    assert first == DeviceChoice("MIG-c3", 0, shared=False, name="MIG-c3", among=instances)


def test_workers_of_xdist_start_at_other_gpus_by_uuid(says, monkeypatch) -> None:
    """What was chosen is what CUDA will read, whatever has asked for the number of devices."""
    says(TWO)
    monkeypatch.setenv("PYTEST_XDIST_WORKER", "gw1")
    found = choose_device(0, 1, 1)
    assert found == DeviceChoice("GPU-b2", 0, shared=False, name="GPU-b2", among=2)


def test_a_rank_knows_how_many_devices_its_caller_may_use(says, monkeypatch) -> None:
    """It sees its own alone; what was recorded on a machine says how many that has."""
    says(TWO)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(own_device, "device_uuid", lambda: "a1")
    monkeypatch.setattr(own_device, "_among", 0)
    for name in (VISIBLE_DEVICES, "LOCAL_RANK"):  # what is called sets them: they are put back
        monkeypatch.setenv(name, "0")
    monkeypatch.delenv(VISIBLE_DEVICES)
    assert own_device.devices_of_caller() == 1
    own_device.take_device(choose_device(0, 1, 1))
    assert os.environ[VISIBLE_DEVICES] == "GPU-a1"
    assert own_device.devices_of_caller() == 2


def test_too_few_devices_are_counted(says) -> None:
    """The skip says for how many ranks there are enough."""
    says(TWO)
    assert choose_device(0, 5, 2) == 4


def test_ranks_of_their_own_keep_the_order_of_the_list() -> None:
    """LOCAL_RANK is an index into what is visible."""
    ours = ("GPU-a1", "GPU-b2")
    assert choice_of(ours, 1, 2) == DeviceChoice("GPU-a1,GPU-b2", 1, shared=False, name="GPU-b2")


def test_another_device_than_the_chosen_one_is_refused() -> None:
    """CUDA had read the variable before it was changed."""
    found = DeviceChoice("GPU-b2", 0, shared=False, name="GPU-b2")
    expect_chosen(found, "b2")
    expect_chosen(found, "GPU-b2")
    with pytest.raises(RuntimeError, match=r"expected cuda:0 to be GPU-b2 .* but got a1"):
        expect_chosen(found, "a1")
