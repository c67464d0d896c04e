"""Names of wrappers within names of weights: two sides may wrap a module, or compile it, or not."""

from __future__ import annotations

import re

WRAPPER_NAMES = frozenset(
    {"_checkpoint_wrapped_module", "_forward_module", "_fsdp_wrapped_module", "_orig_mod"}
)
"""Names of the child that a wrapper stands for: activation checkpointing, Fabric, FSDP, compile."""

_WRAPPER = re.compile(rf"(?:^|\.)(?:{'|'.join(sorted(WRAPPER_NAMES))})(?![^.:])")


def unwrapped(name: str) -> str:
    """Return a name without the wrappers in it: `blocks.0._orig_mod.up.weight` without `_orig_mod`.

    Args:
        name: of a tensor or a module; what follows a colon is not a part of the path.
    """
    return _WRAPPER.sub("", name).removeprefix(".")
