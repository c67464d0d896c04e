"""AuditFinding: one thing that is wrong with a model or its optimizer, or worth knowing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from pytest_precision.matrix.contract import dtype_name

Severity = Literal["error", "warning", "note"]

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From the worst on."""

NAMES_SHOWN = 3

SHORT = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
    torch.uint8: "codes",
    torch.int8: "codes",
}
"""Numbers of 8 bits and less lie in bytes, as codes of a format that torch has no name for."""


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """One finding on a model or its optimizer: what is wrong, why it matters, and what to do.

    Attributes:
        rule: name of the rule, such as `update-below-fp32`.
        severity: `error` where training will not do what was meant, `warning` where it loses
            precision that it could keep, `note` for what its owner should know.
        reason: what was found, in one sentence without a full stop.
        remedy: what to do about it.
        names: the tensors, modules or groups that it was found at.
    """

    rule: str
    severity: Severity
    reason: str
    remedy: str
    names: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Return the names of the tensors at fault: a few in full, then how many more there are."""
        shown = ", ".join(self.names[:NAMES_SHOWN])
        more = len(self.names) - NAMES_SHOWN
        return f"{shown} and {more} more" if more > 0 else shown

    @property
    def message(self) -> str:
        """Return a finding in one line: its reason, its remedy and the names of its tensors."""
        at = f" ({self.where})" if self.names else ""
        return f"{self.reason}{at}; {self.remedy}"


def short_dtype(dtype: torch.dtype | None) -> str:
    """Return the short name of a dtype: `bf16`."""
    return SHORT.get(dtype, dtype_name(dtype)) if dtype else "unknown"


def below_fp32(dtype: torch.dtype | None) -> bool:
    """Return whether a dtype is a float with fewer bits than fp32, or holds quantized codes."""
    return dtype is not None and (
        SHORT.get(dtype) == "codes" or (dtype.is_floating_point and dtype.itemsize < 4)
    )


def worst_first(findings: Iterable[AuditFinding]) -> Iterator[AuditFinding]:
    """Yield each distinct finding once, the worst severity first."""
    once = dict.fromkeys(findings)
    for severity in SEVERITIES:
        yield from (finding for finding in once if finding.severity == severity)
