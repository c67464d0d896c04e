"""Versions: those that a result depends on, read without importing their packages."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Any

PACKAGES = ("pytest-precision", "pytest", "torch", "numpy", "transformer-engine")


def environment(*, device: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry `environment` of report.json, except for `runs` and the world sizes.

    Args:
        device: device that the ranks run on.
        flags: the plugin's options and their values, as plain data.
    """
    versions = {"python": platform.python_version()}
    versions.update({name: found for name in PACKAGES if (found := version_of(name))})
    return {
        "versions": versions,
        "platform": platform.platform(),
        "device": device,
        "flags": dict(flags),
    }


def differing(sides: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return what is not the same in the environments of all sides, for each side."""
    names = {name for own in sides.values() for name in own}
    unlike = {name for name in names if len({own.get(name) for own in sides.values()}) > 1}
    return {
        side: {name: value for name, value in own.items() if name in unlike}
        for side, own in sides.items()
        if unlike
    }


def version_of(package: str) -> str:
    """Return the version of a package; nothing where it is not installed as one."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
