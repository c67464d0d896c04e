"""Installs Transformer Engine's stand-in on all ranks, if the option `precision_preload` names it.

Importing it installs the stand-in where there is no GPU, and with it Transformer Engine, which each
rank of each group would else import for itself. It belongs in a suite whose layouts all use
Transformer Engine: torch calls the CPU `cuda` on all of its ranks.
"""

from __future__ import annotations

import torch

from pytest_precision.te.stand_in import install

if not torch.cuda.is_available():
    install()
