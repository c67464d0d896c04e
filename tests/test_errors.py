"""Exceptions: what users may meet, they can catch by a public name."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest
import torch

import pytest_precision
from pytest_precision import Cell, audit, errors
from pytest_precision.check.compare import compare_recordings
from pytest_precision.check.terms import Terms
from pytest_precision.ranks.gpus.backend import Machine, choose

PACKAGE = Path(errors.__file__).parent

KNOWN = {
    name: kind
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, Exception)
}


def caught() -> set[str]:
    """Return the exceptions that an `except` names, or whose `__qualname__` a rank's error has."""
    found: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        text = file.read_text()
        if not any(name in text for name in KNOWN):
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ExceptHandler) and node.type is not None:
                found |= {one.id for one in ast.walk(node.type) if isinstance(one, ast.Name)}
            elif isinstance(node, ast.Attribute) and node.attr == "__qualname__":
                found |= {one.id for one in [node.value] if isinstance(one, ast.Name)}
    return found


def test_what_the_package_does_not_catch_is_public() -> None:
    """So that an exception which leaves it has a name that users can import."""
    assert len(KNOWN) > 15
    assert KNOWN.keys() - {*pytest_precision.__all__} <= caught()


@pytest.mark.parametrize("name", sorted(KNOWN.keys() & {*pytest_precision.__all__}))
def test_a_traceback_names_what_users_import(name: str) -> None:
    """The class is that of the package, by its name there, and travels from a rank as itself."""
    kind = getattr(pytest_precision, name)
    assert kind is KNOWN[name]
    assert f"{kind.__module__}.{kind.__qualname__}" == f"pytest_precision.{name}"
    assert pickle.loads(pickle.dumps(kind)) is kind


def test_a_folder_that_is_no_recording(tmp_path: Path) -> None:
    """What `parity.compare` raises, which calls this."""
    with pytest.raises(pytest_precision.RecordingError, match="the folder of a recording"):
        compare_recordings(tmp_path, tmp_path, Terms.of(None), "test_it", None)


def test_a_set_up_without_an_optimizer() -> None:
    """An audit of a model alone has nothing to say of updates."""
    with pytest.raises(pytest_precision.NoSetupError, match="optimizer"):
        audit(torch.nn.Linear(2, 2), None)


def test_a_sequence_that_is_misspelt() -> None:
    """A test may write sequences for its reference."""
    with pytest.raises(pytest_precision.SequenceError, match="'tran2' is no operation"):
        Cell().replace(sequence="tran2")


def test_native_formats_on_a_cpu() -> None:
    """A layout asks for them where `--precision-backend=native` is given."""
    with pytest.raises(pytest_precision.BackendError, match="mxfp8"):
        choose("native", "mxfp8", Machine("2.20", None))
