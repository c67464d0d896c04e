"""A stand-in for Transformer Engine's compiled module, on machines without a GPU.

    from pytest_precision import te
    te.install()                            # then, and not before:
    import transformer_engine.pytorch

Transformer Engine's Python layer decides which weights are cached, which amaxes are recorded and
reduced, what is a master and what a checkpoint holds. It runs unchanged over this stand-in, whose
arithmetic is that of `formats` and `optim`. What a kernel of a GPU adds in another order, such as
the sum in a GEMM, is added in torch's order here: those bits are not a GPU's.

    stand_in                                refuses what it cannot serve, and makes the module
    device, cuda, nccl, triton, apex        what torch and others say while there is no GPU
    quantize, expert_groups, gemm, ...      the functions of the module, one file an area
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_precision import _lazy

if TYPE_CHECKING:
    from pytest_precision.te.stand_in import CHANGES as CHANGES
    from pytest_precision.te.stand_in import install as install
    from pytest_precision.te.stand_in import install_without_gpu as install_without_gpu
    from pytest_precision.te.stand_in import refusal as refusal
    from pytest_precision.te.stand_in import running as running

__all__ = ["CHANGES", "install", "install_without_gpu", "refusal", "running"]

__getattr__, __dir__ = _lazy.exports(__name__, {"stand_in": __all__})
