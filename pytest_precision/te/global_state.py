"""What Transformer Engine keeps of layers for the whole process, where a rank runs many jobs."""

from __future__ import annotations

import sys


def forget_earlier_layers() -> None:
    """Take back what layers of earlier jobs have left; call it before the forwards of a new model.

    In delayed scaling, the histories of all layers that were ever called are updated together, and
    what is recomputed is numbered over all of them: each job would take longer than the one before,
    and differ from its repetition.
    """
    module = sys.modules.get("transformer_engine.pytorch.quantization")
    if module is not None:
        module.FP8GlobalStateManager.reset()
