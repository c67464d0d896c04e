"""Devices: over the stand-in, what says `cuda`, what says `cpu`, and what NCCL is there."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import planted_devices as planted
import pytest
import te_wheel

pytestmark = [pytest.mark.slow, te_wheel.NEEDED]


def test_tensors_say_cuda_unless_they_were_asked_for_on_the_cpu(
    on_a_rank: Callable[..., dict[str, object]],
) -> None:
    """A copy on the CPU and its views say so, and do not share memory with the original."""
    assert on_a_rank(planted.told_devices) == {
        "made": "cuda:0",
        "asked for": "cuda:0",
        "copied": "cpu",
        "view of the copy": "cpu",
        "back": "cuda:0",
        "the copy is one": 1.0,
        "recorded without a copy": True,
        "gradient": "cuda:0",
        "module": "cuda:0",
        "meta": "meta",
        "instance": True,
    }


def test_types_name_the_device(on_a_rank: Callable[..., list[str]]) -> None:
    """Megatron-core tells the dtypes of parameters by them."""
    named = ["torch.cuda.BFloat16Tensor", "torch.cuda.FloatTensor", "torch.FloatTensor"]
    assert on_a_rank(planted.told_types) == named


def test_groups_for_nccl_are_made_over_gloo(on_a_rank: Callable[..., list[str]]) -> None:
    """A script that asks for NCCL, its options and a GPU runs unchanged."""
    assert on_a_rank(planted.made_for_nccl) == ["gloo", "gloo"]


@pytest.mark.parametrize("sizes", [[1, 2], [0, 3], [2, 2]])
def test_parts_of_several_sizes_are_gathered_and_scattered(
    on_two_ranks: Callable[..., list[object]], sizes: list[int]
) -> None:
    """As NCCL does it, for experts that get other numbers of tokens on each rank."""
    first, number = sizes[0], sum(sizes)
    gathered = [1.0] * first + [2.0] * (number - first)
    summed = [2.0 * n + 3 for n in range(number)]
    assert on_two_ranks(partial(planted.exchanged_unevenly, sizes)) == [
        (gathered, summed[:first]),
        (gathered, summed[first:]),
    ]


def test_scalars_and_derived_classes_are_quantized(on_a_rank: Callable[..., list[float]]) -> None:
    """A tensor without dimensions has one value; a derived class is of its base's family."""
    assert on_a_rank(planted.quantized_anew) == [3.0, 512.0]


def test_blocks_are_multiplied_as_the_capability_has_it(
    on_a_rank: Callable[..., dict[str, object]],
) -> None:
    """On 9.0 the product is rounded before it is added to a buffer, and GELU is refused."""
    made = on_a_rank(planted.added_blocks)
    assert (made["rounded twice"], made["rounded twice on 10.0"]) == (True, False)
    assert "one that it refuses with 'Epilogue requested outside" in str(made["refused"])
    assert str(made["refused"]).endswith(
        "; compute bias and GELU, or their gradients, after the GEMM"
    )


@pytest.mark.parametrize(
    ("capability", "cublas", "skipped"),
    [
        ((8, 0), 130600, "fp8_delayed fp8_current fp8_block mxfp8 nvfp4 single bf16"),
        ((9, 0), 130100, "mxfp8 nvfp4 single bf16 single fp8_current single fp8_block"),
        ((9, 0), 130400, "mxfp8 nvfp4 single fp8_current single fp8_block"),
        ((9, 0), 130600, "mxfp8 nvfp4"),
        ((10, 0), 130600, "single fp8_block"),
    ],
)
def test_cells_that_a_gpu_has_no_kernels_for_are_skipped(
    on_a_rank: Callable[..., dict[str, str]],
    capability: tuple[int, int],
    cublas: int,
    skipped: str,
) -> None:
    """With Transformer Engine's reason; on an H100 they were red cells before."""
    found = on_a_rank(partial(planted.skipped_on, capability, cublas))
    assert " ".join(name for name, why in found.items() if why) == skipped
    assert all("compute capability" in why for why in found.values() if why)


@pytest.mark.parametrize(
    ("capability", "skipped"), [((8, 0), "current mxfp8"), ((9, 0), "mxfp8"), ((10, 0), "")]
)
def test_the_example_is_skipped_where_a_gpu_has_no_kernels_for_its_recipe(
    on_a_rank: Callable[..., dict[str, str]], capability: tuple[int, int], skipped: str
) -> None:
    """A recipe that a layout chooses itself; on an H200 its cell was red before."""
    found = on_a_rank(partial(planted.example_skipped_on, capability))
    assert " ".join(name for name, why in found.items() if why) == skipped


def test_torch_compiles_nothing(on_a_rank: Callable[..., tuple[float, str]]) -> None:
    """It would ask the stand-in for Triton for a compiler; the function runs as it is written."""
    assert on_a_rank(planted.compiled) == (-1.0, "cuda:0")
