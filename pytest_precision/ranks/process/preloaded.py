"""Preloaded: modules that the fork server imports once, so that no rank has to import them.

A framework takes seconds to import, in each rank of each group. What its import changes in the
process is there in every rank, also for layouts that do not use it.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec

from pytest_precision.errors import expected_but_got
from pytest_precision.ranks.process.lifeline import WATCH

VARIABLE = "PYTEST_PRECISION_PRELOAD"
"""Environment variable with the modules' names, for a fork server while it starts."""

NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
"""Variable of torch with which `torch.cuda.is_available()` asks the driver's library. Without it,
the question starts CUDA's driver, and no fork of the process can use a GPU: torchao, bitsandbytes
and models of transformers ask it while they are imported."""

variables: dict[str, str] = {}
"""Environment variables that the imports have set in this process."""

_refusals: list[str] = []


def missing_modules(names: Iterable[str]) -> Iterator[str]:
    """Yield those of some modules whose package is not installed, without importing any."""
    for name in names:
        try:
            spec = find_spec(name.partition(".")[0])
        except ValueError:  # a module that was not imported, such as __main__
            spec = None
        if spec is None:
            yield name


def take_in() -> None:
    """Import the modules to preload before forks; stop at one that leaves threads or a GPU open."""
    names = os.environ.pop(VARIABLE, "").split()
    before = dict(os.environ)
    os.environ[NVML_CHECK] = "1"
    for name in names:
        try:
            importlib.import_module(name)
        except Exception as error:
            _refuse(name, "can be imported", f"{type(error).__name__}: {error}")
            break
        if obstacle := _not_forked():
            _refuse(name, "leaves no thread and no GPU open, which a fork would break", obstacle)
            break
    if NVML_CHECK in before:
        os.environ[NVML_CHECK] = before[NVML_CHECK]
    else:
        del os.environ[NVML_CHECK]
    variables.update(
        {name: setting for name, setting in os.environ.items() if before.get(name) != setting}
    )


def _refuse(name: str, expected: str, got: str) -> None:
    requirement = f"a module for precision_preload that {expected},"
    advice = "install it, put its folder on PYTHONPATH, or leave it out there"
    _refusals.append(expected_but_got(requirement, f"{name!r}: {got}", advice))


def _not_forked() -> str:
    """Return, in words, the threads or the CUDA state that a fork would break; empty if none."""
    others = {thread.name for thread in threading.enumerate()} - {"MainThread", WATCH}
    if others:
        return f"thread {', '.join(sorted(others))}"
    return "CUDA was initialized" if _forks_lose_cuda() and _has_gpu() else ""


def _forks_lose_cuda() -> bool:
    """Return whether torch refuses CUDA in forks of this process, by trying a fork."""
    # Only here, because the controller imports this module and does without torch.
    from pytest_precision._torch.dispatch import in_bad_fork

    child = os.fork()
    if child == 0:
        os._exit(int(in_bad_fork()))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def _has_gpu() -> bool:
    """Return whether torch finds a GPU on this machine.

    Without a driver, torch's CUDA build has no NVML to ask, so a question starts what it can of
    CUDA. Asking is harmless here, since forks have lost CUDA already.
    """
    import torch  # for the reason above

    return torch.cuda.device_count() > 0


def join_preloaded(environment: Mapping[str, str]) -> None:
    """Set this rank's environment variables: those that preloaded imports set, then `environment`.

    Raises:
        RuntimeError: the fork server has imported what must not be forked.
    """
    os.environ.clear()
    os.environ.update({**variables, **environment})
    if _refusals:
        raise RuntimeError(_refusals[0])
