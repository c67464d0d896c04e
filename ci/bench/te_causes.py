"""Why tests of others fail over the stand-in: every failure that is known, with its cause.

`ci/te` writes these causes into its table, and fails if a test fails that none of them explains.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Cause:
    """A reason why tests fail.

    Attributes:
        text: what the table says.
        message: pattern of the first lines of the failure.
        test: pattern of the test's name, with its file and parameters.
    """

    text: str
    message: str
    test: str = ""

    def explains(self, test: str, message: str) -> bool:
        """Return whether this is why a test failed with a message."""
        return bool(re.search(self.test, test) and re.search(self.message, message))


UNEXPLAINED = "unexplained: "
"""Beginning of what the table says of a failure that no cause explains."""

CAUSES = (
    Cause("a CPU has no CUDA graphs", "dummy base class CUDAGraph"),
    Cause(
        "asks `torch.cuda.memory_allocated`, which is 0 on a CPU",
        "failed to materialize parameters on CUDA device",
    ),
    Cause("attention in FP8 is a fused kernel", "No dot product attention backend is available"),
    Cause(
        "the reference is `torch._scaled_mm`, whose sum has another order on a CPU",
        "Tensor-likes are not equal",
        "test_float8_current_scaling_exact.py.*_gemm_versus_reference",
    ),
    Cause(
        "the reference computes a scale by dividing by the range; the kernel "
        "(`common/recipe/nvfp4.cu`) multiplies by the reciprocal",
        r"mismatch at step \d",
        "test_nvfp4_module_exact.py",
    ),
    Cause(
        "in bf16, GELU is a function that torch compiles on a GPU; uncompiled, each of its "
        "operations rounds",
        "Tensor-likes are not equal",
        r"test_identity_recipe_matches_bf16_bitwise\[.*(LayerNormMLP|TransformerLayer)",
    ),
    Cause("asks the CUDA runtime how much memory is free", "cudaMemGetInfo"),
    Cause(
        "autocast for CUDA casts nothing on a CPU",
        r"Input type \(float\) and bias type \(c10::Half\)",
        "test_grad_scaler_capturable_master",
    ),
    Cause(
        "the reference is torch's cross entropy in bf16, which sums in bf16 on a CPU",
        "Tensor-likes are not close",
        "test_parallel_cross_entropy.py.*test_bfloat16_input",
    ),
    Cause(
        "the checkout saves one tensor for the backward, the release 2.20 several",
        "AssertionError|assert",
        "test_parallel_cross_entropy.py.*test_bfloat16_unreduced_external_grad",
    ),
    Cause("needs more ranks", r"world_size \(\d\) is not divisible by"),
)


def why(test: str, message: str) -> str:
    """Return the cause of a failure, or its first line after `UNEXPLAINED`."""
    causes = (cause.text for cause in CAUSES if cause.explains(test, message))
    return next(causes, UNEXPLAINED + plain(message))


def plain(message: str) -> str:
    """Return the first line of a message as a part of a table's cell, without what varies."""
    text = " ".join((message.strip() or "no message").split("\n")[:1]).replace("|", "/")
    return re.sub(r"/\S+/", "", re.sub(r"0x[0-9a-f]+", "", text))[:160]
