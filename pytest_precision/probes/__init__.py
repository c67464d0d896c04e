"""What this package brings beside its core; `plugin/bundled.py` registers it by the hooks.

Each module of this folder has a `PROBE` or a `REPORTER`, as plain data; what these name is imported
when it is first called. A new one is a new file here, and no other has to know it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from pytest_precision.registered import ProbeSpec, ReporterSpec

JUDGED_FIRST = ("lost_updates", "identities", "declared_rule", "by_itself", "gradients")
"""Judgements of which the order shows, in a failure and around a run; the others come by name."""


def package_probes() -> list[ProbeSpec]:
    """Return the judgements of this package."""
    return [module.PROBE for module in _modules() if hasattr(module, "PROBE")]


def package_reporters() -> list[ReporterSpec]:
    """Return the reporters of this package."""
    return [module.REPORTER for module in _modules() if hasattr(module, "REPORTER")]


def _modules() -> Iterator[ModuleType]:
    names = sorted(module.name for module in iter_modules(__path__))
    for name in dict.fromkeys([*JUDGED_FIRST, *names]):
        yield import_module(f"{__name__}.{name}")
