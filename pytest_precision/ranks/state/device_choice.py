"""Device choice: which GPUs the ranks of one group get, decided before CUDA starts in them.

CUDA reads CUDA_VISIBLE_DEVICES once, when it starts, and asking it for the number of devices starts
it. So the driver's own program is asked; without that, the variable stays as it is.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"

LISTING_SECONDS = 30.0
"""Time for `nvidia-smi` to list the devices; without a daemon it starts the driver for that."""

_LISTED = re.compile(r"^(?:GPU \d+| +MIG ).*\(UUID: ((?:GPU|MIG)-[^)]+)\)", re.MULTILINE)


class DeviceChoice(NamedTuple):
    """What a rank does about its device.

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
    """Return the UUID of each GPU of this machine; of a GPU in MIG mode, of each instance.

    Returns:
        None if there is no `nvidia-smi`, or it fails.
    """
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=LISTING_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if listing.returncode else usable(_LISTED.findall(listing.stdout))


def usable(uuids: Sequence[str]) -> tuple[str, ...]:
    """Leave out GPUs that are divided: CUDA shows the instances that follow in their place."""
    following = (*uuids, "")[1:]
    return tuple(
        own
        for own, after in zip(uuids, following, strict=True)
        if own.startswith("MIG-") or not after.startswith("MIG-")
    )


def visible_names(variable: str | None, listed: Sequence[str]) -> tuple[str, ...]:
    """Return the devices that this process may use, by the names that the variable gives them.

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
    return entry.startswith(("GPU-", "MIG-")) and any(own.startswith(entry) for own in listed)


def choice_of(ours: Sequence[str], local_rank: int, ranks: int) -> DeviceChoice:
    """Return what one rank does about its device.

    Args:
        ours: names of the devices for the ranks of its group, see `devices.chosen`.
        local_rank: number of the rank among those that choose from the same devices.
        ranks: how many these are.
    """
    index = local_rank % len(ours)
    own = ours[index]
    if any(name.startswith("MIG-") for name in ours):  # a process sees one instance at most
        return DeviceChoice(own, 0, ranks > 1, own)
    shared = len(ours) < ranks
    return DeviceChoice(",".join(ours), index, shared, own if own.startswith("GPU-") else "")
