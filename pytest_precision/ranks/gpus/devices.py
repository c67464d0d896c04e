"""Devices: which GPUs the ranks of one group get, and which process may use them now.

CUDA reads CUDA_VISIBLE_DEVICES once, when it starts, and asking it for the number of devices starts
it. So the driver's own program is asked; without that, the variable stays as it is.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import subprocess
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_precision._within import path_within
from pytest_precision.errors import DevicesBusyError, expected_but_got

LOCKS = Path("/tmp")
"""Folder of the locks of this machine's devices, the same for all users and processes, while their
TMPDIR may differ."""

LOCKS_VARIABLE = "PRECISION_DEVICE_LOCKS"
"""Variable with another folder for them: containers on one machine have a `/tmp` each, and see each
other only in a folder that is mounted into all of them."""

LOCK_SECONDS = 0.02
"""Pause between two attempts to lock a device that another process holds."""

_log = logging.getLogger(__name__)


def chosen(names: tuple[str, ...], ranks: int, per_device: int, worker: int) -> tuple[str, ...]:
    """Return the GPUs for a group's ranks: one for each, or fewer to share; empty if too few.

    Args:
        names: names of the devices that may be used.
        ranks: number of ranks on this machine.
        per_device: how many ranks may share a device if there are not enough.
        worker: number of this xdist worker. Workers start at different devices, so that they need
            not wait for each other.

    Returns:
        The devices of the first ranks; further ranks use them again in turn. It is empty if there
        are too few devices.
    """
    if ranks > len(names) * per_device:
        return ()
    first = worker * ranks % len(names)
    return (*names[first:], *names[:first])[:ranks]


def worker_number(xdist: str | None) -> int:
    """Return the number of this xdist worker; 0 without xdist."""
    digits = (xdist or "").removeprefix("gw")
    return int(digits) if digits.isdigit() else 0


def backend(device: str, shared: bool) -> str:
    """Return `init_process_group`'s backends: gloo on CPUs, nccl on GPUs that are not shared.

    Args:
        device: `cpu` or `cuda`.
        shared: whether ranks share a GPU, which nccl does not support.
    """
    if device == "cpu":
        return "gloo"
    return "cpu:gloo,cuda:gloo" if shared else "cpu:gloo,cuda:nccl"


@contextlib.contextmanager
def held(names: Collection[str], seconds: float, folder: Path | None = None) -> Iterator[None]:
    """Lock GPUs during the block against all other processes of this package on this machine.

    The kernel releases a lock when its holder dies. All processes take the locks in the same order,
    which excludes a deadlock.

    Args:
        names: names of the devices, unique on this machine; an empty name is ignored.
        seconds: longest time to wait.
        folder: folder of the locks; that of the variable, or `LOCKS`, unless given.

    Raises:
        DevicesBusyError: another process still holds one of the devices after that time.
    """
    deadline = time.monotonic() + seconds
    folder = _locks() if folder is None else folder
    with contextlib.ExitStack() as stack:
        for name in sorted({*names} - {""}):
            lock = f"pytest-precision-device-{name}.lock"
            expected = f"the lock of device {name}"
            descriptor = _opened_lock(path_within(folder, lock, expected, error=OSError))
            stack.callback(os.close, descriptor)
            _take(descriptor, name, seconds, deadline)
        yield


def _locks() -> Path:
    """Return the folder of the locks.

    Raises:
        ValueError: the variable that names another one is empty.
    """
    folder = os.environ.get(LOCKS_VARIABLE, str(LOCKS))
    if not folder.strip():
        expected = f"a folder in the variable {LOCKS_VARIABLE}"
        raise ValueError(expected_but_got(expected, f"{folder!r}", f"unset it for {LOCKS}"))
    return Path(folder)


def _opened_lock(file: Path) -> int:
    # First without O_CREAT, which the kernel refuses in /tmp for another user's file.
    with contextlib.suppress(FileNotFoundError):
        return os.open(file, os.O_RDWR | os.O_NOFOLLOW)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with contextlib.suppress(PermissionError):  # another user made it first
        os.fchmod(descriptor, 0o666)  # whatever the umask
    return descriptor


def _take(descriptor: int, name: str, seconds: float, deadline: float) -> None:
    waits = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            written = os.pread(descriptor, 20, 0)  # by any user, since all may write there
            holder = written.decode() if written.isdigit() else "unknown"
            if time.monotonic() >= deadline:
                raise DevicesBusyError(name, holder, seconds) from None
            if not waits:
                waits = True
                _log.warning("waiting for device %s, which process %s holds", name, holder)
            time.sleep(LOCK_SECONDS)
        else:
            written = os.pread(descriptor, 20, 0)
            if not written or written.isdigit():  # other text is somebody's, and the lock is enough
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            return


VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

LISTING_SECONDS = 30.0
"""Time for `nvidia-smi` to list the devices; without a daemon it starts the driver for that."""

_LISTED = re.compile(r"^(?:GPU \d+| +MIG ).*\(UUID: ((?:GPU|MIG)-[^)]+)\)", re.MULTILINE)


class DeviceChoice(NamedTuple):
    """The device of one rank, or the reason why it has none.

    Attributes:
        visible: value of CUDA_VISIBLE_DEVICES from now on; None leaves it as it is.
        number: index of the rank's device among the visible ones. LOCAL_RANK is the same, since
            frameworks take `cuda:LOCAL_RANK`.
        shared: whether ranks share a GPU, so that they cannot talk by nccl.
        name: UUID of the device, where it is known.
        among: how many devices the caller of the ranks may use, where these are listed.
    """

    visible: str | None
    number: int
    shared: bool
    name: str = ""
    among: int = 0


def listed_devices() -> tuple[str, ...] | None:
    """Return the UUID of each GPU of this machine, or of each MIG instance.

    Returns:
        None if there is no `nvidia-smi`, or it fails.
    """
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=LISTING_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if listing.returncode else usable(_LISTED.findall(listing.stdout))


def usable(uuids: Sequence[str]) -> tuple[str, ...]:
    """Return the devices that CUDA shows: MIG instances, and GPUs that are not divided."""
    following = (*uuids, "")[1:]
    return tuple(
        uuid
        for uuid, after in zip(uuids, following, strict=True)
        if uuid.startswith("MIG-") or not after.startswith("MIG-")
    )


def visible_names(variable: str | None, listed: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the GPUs that CUDA_VISIBLE_DEVICES makes visible, as it spells them.

    CUDA ignores an entry that names no device, and all entries after it.

    Args:
        variable: value of CUDA_VISIBLE_DEVICES; None if it is not set.
        listed: what `listed_devices` returned.
    """
    if variable is None:
        return tuple(listed)
    names: list[str] = []
    for entry in map(str.strip, variable.split(",")):
        if not _names_one(entry, listed):
            break
        names.append(entry)
    return tuple(names)


def _names_one(entry: str, listed: Sequence[str]) -> bool:
    if entry.isdecimal():
        return int(entry) < len(listed)
    return entry.startswith(("GPU-", "MIG-")) and any(uuid.startswith(entry) for uuid in listed)


def choice_of(ours: Sequence[str], local_rank: int, ranks: int) -> DeviceChoice:
    """Return which of its group's GPUs a rank uses, and its CUDA_VISIBLE_DEVICES.

    Args:
        ours: names of the devices for the ranks of its group, see `devices.chosen`.
        local_rank: number of the rank among those that choose from the same devices.
        ranks: how many these are.
    """
    index = local_rank % len(ours)
    device = ours[index]
    if any(name.startswith("MIG-") for name in ours):  # a process sees one instance at most
        return DeviceChoice(device, 0, ranks > 1, device)
    shared = len(ours) < ranks
    return DeviceChoice(",".join(ours), index, shared, device if device.startswith("GPU-") else "")
