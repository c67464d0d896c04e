"""Number formats computed on a GPU by this package's own arithmetic have the golden bits."""

from __future__ import annotations

import golden_vectors as golden
import pytest

from pytest_precision.options import Settings


@pytest.mark.parametrize("name", golden.INPUTS)
def test_emulated_formats_are_golden_on_the_device(settings: Settings, name: str) -> None:
    """Where there are no kernels for a format, a GPU computes what the CPU computes."""
    ordinary = [
        case for case in range(len(golden.cases(golden.INPUTS[name]))) if case != golden.SPECIAL
    ]
    wrong = {case: golden.differing_fields(name, case, settings.device) for case in ordinary}
    assert not any(wrong.values()), wrong


@pytest.mark.parametrize("update", ["fused", "unfused"])
def test_delayed_scaling_is_golden_on_the_device(settings: Settings, update: str) -> None:
    """Casts, amaxes and scales of all steps: the history of amaxes is on the device, too."""
    wrong = {
        case: golden.differing_steps(case, update, settings.device)
        for case in range(len(golden.cases("fp8_delayed")))
    }
    assert not any(wrong.values()), wrong
