"""Start CUDA in this process on the GPU that was chosen for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pytest_precision.errors import expected_but_got
from pytest_precision.ranks.gpus import devices
from pytest_precision.ranks.gpus.devices import (
    VISIBLE_DEVICES,
    DeviceChoice,
    choice_of,
    listed_devices,
    visible_names,
)

_among = 0
"""How many devices the caller may use, once this process has taken its own."""


def choose_device(local_rank: int, sharing: int, per_device: int) -> DeviceChoice | int:
    """Choose this rank's GPU among those that the process which started it may use.

    Args:
        local_rank: number of the rank on this machine.
        sharing: how many ranks choose from the same devices.
        per_device: how many ranks may share one.

    Returns:
        The choice; if there are too few devices, for how many ranks there are enough.
    """
    listed = listed_devices()
    variable = os.environ.get(VISIBLE_DEVICES)
    # CUDA counts without the driver's program, but has read the variable then.
    counted = torch.cuda.device_count() if listed is None else 0
    names = tuple(map(str, range(counted))) if listed is None else visible_names(variable, listed)
    worker = devices.worker_number(os.environ.get("PYTEST_XDIST_WORKER"))
    ours = devices.chosen(names, sharing, per_device, worker)
    if not ours:
        return len(names) * per_device
    choice = choice_of(ours, local_rank, sharing)._replace(among=len(names))
    if listed is None:
        return choice._replace(visible=None, number=int(ours[choice.number]))
    return choice


def take_device(choice: DeviceChoice) -> torch.device:
    """Start CUDA on the chosen device, and return the device.

    Raises:
        RuntimeError: CUDA calls another device by that number.
    """
    global _among
    if choice.visible is not None:
        os.environ[VISIBLE_DEVICES] = choice.visible
    os.environ["LOCAL_RANK"] = str(choice.number)
    device = torch.device("cuda", choice.number)
    torch.cuda.set_device(device)
    expect_chosen(choice, device_uuid())
    _among = choice.among
    return device


def show_device(choice: DeviceChoice) -> str:
    """Show this process the chosen device without starting CUDA in it; return the device's UUID.

    A script decides itself when CUDA starts, and with which variables. A fork asks for the name.

    Raises:
        RuntimeError: CUDA cannot be started on the device.
    """
    if choice.visible is not None:
        os.environ[VISIBLE_DEVICES] = choice.visible
    os.environ["LOCAL_RANK"] = str(choice.number)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            take_device(choice)
            os.write(writing, device_uuid().encode())
        except BaseException as error:
            os.write(writing, f"!{error}".encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, encoding="utf-8") as answers:
        said = answers.read()
    os.waitpid(child, 0)
    if not said or said.startswith("!"):
        raise RuntimeError(
            expected_but_got(f"CUDA to start on device {choice.number}", said[1:] or "no answer")
        )
    return said


def devices_of_caller() -> int:
    """Return how many GPUs the process that started this rank may use.

    A rank itself may see only its own. A process that chose none, such as that of a script, is its
    own caller.
    """
    return _among or torch.cuda.device_count()


@contextmanager
def device_of_worker() -> Iterator[int]:
    """Select the GPU of this xdist worker during the block, and yield its index.

    CUDA may have started in this process long ago, so that its list of devices stays as it is.
    """
    index = devices.worker_number(os.environ.get("PYTEST_XDIST_WORKER")) % torch.cuda.device_count()
    with torch.cuda.device(index):
        yield index


def device_uuid() -> str:
    """Return the UUID of this process's device."""
    return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)


def expect_chosen(choice: DeviceChoice, got: str) -> None:
    """Raise if the UUID of this process's GPU is not that of the GPU which was chosen.

    Raises:
        RuntimeError: it has another one.
    """
    uuid = choice.name.removeprefix("GPU-")
    if choice.name.startswith("GPU-") and not got.removeprefix("GPU-").startswith(uuid):
        raise RuntimeError(
            expected_but_got(
                f"cuda:{choice.number} to be {choice.name} with "
                f"{VISIBLE_DEVICES}={choice.visible},",
                got,
                f"unset what sets {VISIBLE_DEVICES} or starts CUDA before the ranks do",
            )
        )
