"""Scenes in which Transformer Engine's Python layer calls its kernels, to record what they compute.

    python tests/te/kernel_scenes.py FILE           on a GPU with `pytest-precision[te]`
    python tests/te/kernel_scenes.py --cpu FILE     over the stand-in

What a scene cannot do on a card is printed; all other calls are recorded.
"""

from __future__ import annotations

import copy
import itertools
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

ROWS, WIDTH = 32, 64

RECIPES = ("DelayedScaling", "Float8CurrentScaling", "Float8BlockScaling")
LATER = ("MXFP8BlockScaling", "NVFP4BlockScaling")
"""Recipes whose GEMMs need a later card; some of their kernels run on earlier ones."""


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.bfloat16, grad: bool = False):
    """Return normal values on the device, the same everywhere."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    made = torch.randn(shape, generator=generator).to(dtype).cuda()
    return made.requires_grad_(grad)


def of_recipe(name: str, **given: Any) -> Any:
    """Return a recipe of Transformer Engine."""
    from transformer_engine.common import recipe

    return getattr(recipe, name)(**given)


def filled(module: torch.nn.Module) -> torch.nn.Module:
    """Give parameters the same values everywhere."""
    for number, parameter in enumerate(module.parameters()):
        values = drawn(*parameter.shape, seed=number, dtype=torch.float32) * 0.1
        with torch.no_grad():
            parameter.copy_(values.to(parameter.dtype) if parameter.dim() else values)
    return module


def layers() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield layers in each recipe, two steps of two microbatches each."""
    import transformer_engine.pytorch as te

    made: dict[str, Callable[..., torch.nn.Module]] = {
        "Linear": lambda width, **o: te.Linear(width, width, **o),
        "LayerNormLinear": lambda width, **o: te.LayerNormLinear(width, width, **o),
        "RMSNormLinear": lambda width, **o: te.LayerNormLinear(
            width, width, normalization="RMSNorm", bias=False, **o
        ),
        "LayerNormMLP": lambda width, **o: te.LayerNormMLP(width, width, **o),
        "swiglu": lambda width, **o: te.LayerNormMLP(
            width, width, activation="swiglu", normalization="RMSNorm", bias=False, **o
        ),
        "GroupedLinear": lambda width, **o: te.GroupedLinear(2, width, width, **o),
    }

    def trained(name: str, chosen: str, fused: bool, primary: bool) -> None:
        recipe = of_recipe(chosen) if chosen else None
        width = 2 * WIDTH if "Block" in chosen else WIDTH
        context = te.quantized_model_init(recipe=recipe) if primary else nullcontext()
        with context:
            module = made[name](width, params_dtype=torch.bfloat16, fuse_wgrad_accumulation=fused)
        filled(module)
        for parameter in module.parameters():
            parameter.main_grad = torch.zeros(parameter.shape, device="cuda")
        splits = ([ROWS, ROWS],) if name == "GroupedLinear" else ()
        for step, number in itertools.product(range(2), range(2)):
            x = drawn(2 * ROWS, width, seed=10 * step + number, grad=True)
            with te.autocast(enabled=recipe is not None, recipe=recipe):
                y = module(x, *splits, is_first_microbatch=number == 0)
            y.backward(drawn(*y.shape, seed=step + number))

    later = LATER if torch.cuda.get_device_capability() >= (10, 0) else ()
    for name, chosen, fused, primary in itertools.product(
        made, ("", *RECIPES, *later), (False, True), (False, True)
    ):
        if not primary or chosen:
            what = f"{name} {chosen or 'bf16'} fused={fused} primary={primary}"
            yield what, lambda given=(name, chosen, fused, primary): trained(*given)


def inputs() -> dict[str, Tensor]:
    """Return what is hard to quantize: edges, zeros, tiny and large values, infinities, NaN."""
    usual = drawn(144, 16)
    tiny = usual * 2.0**-130
    mixed = usual.clone()
    mixed[::3] *= 2.0**60
    mixed[1::7] = 0
    special = usual.clone()
    special[0, 0], special[5, 7], special[64, 14] = torch.inf, torch.nan, -torch.inf
    return {
        "usual": usual,
        "fp16": usual.half(),
        "fp32": usual.float(),
        "block": drawn(128, 144),
        "edge": drawn(48, 80),
        "tiny": tiny,
        "mixed": mixed,
        "zeros": torch.zeros_like(usual),
        "minus": -torch.zeros_like(usual),
        "special": special,
    }


def quantizers() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield each quantizer on each input, back to values, and with the gradient of a bias."""
    import transformer_engine_torch as tex
    from transformer_engine.pytorch import (
        Float8BlockQuantizer,
        Float8CurrentScalingQuantizer,
        Float8Quantizer,
        MXFP8Quantizer,
        NVFP4Quantizer,
    )

    kinds = tex.DType.kFloat8E4M3, tex.DType.kFloat8E5M2
    made: dict[str, Callable[[], Any]] = {}
    for kind in kinds:
        made[f"delayed {kind}"] = lambda kind=kind: Float8Quantizer(
            torch.full((1,), 3.0).cuda(), torch.zeros(1).cuda(), kind
        )
        for power in (False, True):
            made[f"current {kind} {power}"] = lambda kind=kind, power=power: (
                Float8CurrentScalingQuantizer(kind, device="cuda", force_pow_2_scales=power)
            )
            for dimension in (1, 2):
                made[f"block {kind} {power} {dimension}"] = (
                    lambda kind=kind, power=power, dimension=dimension: Float8BlockQuantizer(
                        kind,
                        rowwise=True,
                        columnwise=True,
                        force_pow_2_scales=power,
                        block_scaling_dim=dimension,
                    )
                )
    for kind in kinds:
        made[f"mxfp8 {kind}"] = lambda kind=kind: MXFP8Quantizer(kind)
    made["nvfp4"] = lambda: NVFP4Quantizer(with_rht=False, with_post_rht_amax=False)
    made["nvfp4 2d"] = lambda: NVFP4Quantizer(with_2d_quantization=True)
    made["nvfp4 rht"] = lambda: NVFP4Quantizer(with_rht=True, with_post_rht_amax=True)

    if torch.cuda.get_device_capability() < (10, 0):  # their kernels do nothing there
        made = {name: make for name, make in made.items() if not name.startswith(("mx", "nv"))}

    def quantized(quantizer: Any, x: Tensor) -> None:
        found = tex.quantize(x, quantizer)
        if x.dtype == torch.bfloat16 and bool(x.isfinite().all()):
            tex.bgrad_quantize(x, copy.copy(quantizer))
            tex.gelu(x, copy.copy(quantizer))
            for name in ("dgelu", "dqgelu", "drelu", "dsilu", "dsrelu"):
                getattr(tex, f"dbias_{name}")(x, x, copy.copy(quantizer))
            tex.split_quantize(x, [16, x.shape[0] - 16], [quantizer, copy.copy(quantizer)])
        tex.dequantize(found, tex.DType.kBFloat16)  # last, since there is none of blocks

    for (name, make), (kind, x) in itertools.product(made.items(), inputs().items()):
        yield f"{name} of {kind}", lambda make=make, x=x: quantized(make(), x)


def optimizers() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield `FusedAdam` and `FusedSGD` in their forms, three steps of each, and their scales."""
    from transformer_engine.pytorch.optimizers import FusedAdam, FusedSGD

    bf16, fp16, fp32, fp8 = torch.bfloat16, torch.float16, torch.float32, torch.uint8
    forms: list[tuple[torch.dtype, dict[str, Any]]] = [
        (fp32, {}),
        (bf16, {}),
        (bf16, {"master_weights": True}),
        (bf16, {"master_weights": True, "store_param_remainders": True}),
        (bf16, {"master_weights": True, "exp_avg_dtype": bf16, "exp_avg_sq_dtype": bf16}),
        (bf16, {"master_weights": True, "exp_avg_dtype": fp8, "exp_avg_sq_dtype": fp16}),
        (bf16, {"master_weights": True, "exp_avg_dtype": fp16, "exp_avg_sq_dtype": fp8}),
        (bf16, {"master_weights": True, "master_weight_dtype": fp16}),
        (fp32, {"adam_w_mode": False}),
        (fp32, {"bias_correction": False}),
        (fp32, {"capturable": True}),
        (bf16, {"capturable": True, "master_weights": True}),
    ]

    def stepped(dtype: torch.dtype, kind: type, options: dict[str, Any]) -> None:
        weights = [
            torch.nn.Parameter(drawn(*shape, dtype=dtype)) for shape in ((40, 30), (7,), (64,))
        ]
        optimizer = kind(weights, lr=1e-2, weight_decay=0.1, **options)
        for step in range(3):
            for number, weight in enumerate(weights):
                weight.grad = drawn(*weight.shape, seed=7 * step + number, dtype=dtype)
            optimizer.step()

    def stepped_on_fp8(**options: Any) -> None:
        import transformer_engine.pytorch as te

        with te.quantized_model_init(recipe=of_recipe("DelayedScaling")):
            module = te.Linear(WIDTH, WIDTH, params_dtype=torch.bfloat16)
        optimizer = FusedAdam(filled(module).parameters(), master_weights=True, **options)
        for step in range(3):
            for number, weight in enumerate(module.parameters()):
                weight.grad = drawn(*weight.shape, seed=7 * step + number)
            optimizer.step()

    yield "FusedAdam on fp8", stepped_on_fp8
    for dtype, options in forms:
        yield (
            f"FusedAdam {dtype} {options}",
            lambda dtype=dtype, options=options: stepped(dtype, FusedAdam, options),
        )
    for options in ({}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}):
        yield (
            f"FusedSGD {options}",
            lambda options=options: stepped(torch.float32, FusedSGD, options),
        )

    def scales(power_of_two: bool) -> None:
        import transformer_engine_torch as tex

        amaxes = [torch.tensor([value]).cuda() for value in (3.7, 0.0, 1e-30, 2.0**120, torch.inf)]
        others = [[torch.zeros_like(one) for one in amaxes] for _ in range(2)]
        tex.multi_tensor_compute_scale_and_scale_inv(
            65536, torch.zeros(1).int().cuda(), [amaxes, *others], 448.0, power_of_two, 1e-12
        )

    for power_of_two in (False, True):
        yield f"scales {power_of_two}", lambda given=power_of_two: scales(given)


def masters() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield casts of masters, whole and in two shards, into quantized weights."""
    import torch.distributed as dist
    import transformer_engine.pytorch as te
    from transformer_engine.pytorch.tensor.utils import quantize_master_weights

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def cast(chosen: str, part: slice) -> None:
        with te.quantized_model_init(recipe=of_recipe(chosen)):
            module = te.Linear(2 * WIDTH, 3 * WIDTH, bias=False, params_dtype=torch.bfloat16)
        master = drawn(module.weight.numel(), dtype=torch.float32)[part]
        quantize_master_weights([filled(module).weight], [master], [part.start], dist.group.WORLD)

    for chosen in (*RECIPES, *LATER):
        for part in (slice(0, 24576), slice(0, 10000), slice(10000, 24576)):
            yield f"cast {chosen} {part}", lambda given=(chosen, part): cast(*given)


def experts() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the router, its losses, and permutations of tokens with their gradients."""
    import transformer_engine.pytorch as te
    from transformer_engine.pytorch import router

    tokens, number, topk = 40, 8, 3

    def route(function: str, dtype: torch.dtype, early: bool, biased: bool, grouped: bool) -> None:
        logits = drawn(tokens, number, dtype=dtype, grad=True)
        bias = drawn(number, dtype=torch.float32) if biased else None
        probs, map_ = router.fused_topk_with_score_function(
            *(logits, topk, early, 4 if grouped else None, 3 if grouped else None, 2.5),
            *(function, bias),
        )
        probs.backward(drawn(*probs.shape, dtype=probs.dtype))
        logits = drawn(tokens, number, dtype=dtype, grad=True)
        scored = router.fused_compute_score_for_moe_aux_loss(logits, topk, function)[1]
        loss = router.fused_moe_aux_loss(scored, map_.sum(0).int(), tokens, number, topk, 0.01)
        loss.backward()

    for function, dtype, early, biased, grouped in itertools.product(
        ("softmax", "sigmoid", "sqrtsoftplus"),
        (torch.float32, torch.bfloat16),
        (False, True),
        (False, True),
        (False, True),
    ):
        if biased and function == "softmax":
            continue  # refused
        yield (
            f"router {function} {dtype} {early} {biased} {grouped}",
            lambda given=(function, dtype, early, biased, grouped): route(*given),
        )

    def permute(kind: str, dtype: torch.dtype, weighted: bool) -> None:
        x = drawn(tokens, WIDTH, dtype=dtype, grad=True)
        scores = drawn(tokens, number, dtype=torch.float32)
        chosen = scores.topk(topk).indices
        mask = torch.zeros(tokens, number, device="cuda").scatter(1, chosen, 1)
        routing = mask.int() if kind == "mask" else chosen.int()
        out, rows = te.moe_permute(x, routing, num_out_tokens=tokens * topk, map_type=kind)
        probs = None
        if weighted:
            held = scores.softmax(-1)
            probs = (held * mask if kind == "mask" else held.gather(1, chosen)).detach().clone()
            probs.requires_grad_()
        back = te.moe_unpermute(
            out, rows, merging_probs=probs, restore_shape=x.shape, map_type=kind
        )
        back.backward(drawn(*back.shape, dtype=dtype))

    for kind, dtype, weighted in itertools.product(
        ("mask", "index"), (torch.float32, torch.bfloat16), (False, True)
    ):
        yield (
            f"permute {kind} {dtype} {weighted}",
            lambda given=(kind, dtype, weighted): permute(*given),
        )

    def permute_weighted() -> None:
        x, scores = drawn(tokens, WIDTH, grad=True), drawn(tokens, number, dtype=torch.float32)
        mask = torch.zeros(tokens, number, device="cuda").scatter(1, scores.topk(topk).indices, 1)
        probs = (scores.softmax(-1) * mask).detach().requires_grad_()
        out, given, _ = te.moe_permute_with_probs(x, probs, mask.int(), tokens * topk)
        (out.float().sum() + given.sum()).backward()

    yield "permute with probabilities", permute_weighted

    def pad() -> None:
        x = drawn(40, WIDTH, grad=True)
        out, _ = te.Fp8Padding(2)(x, [17, 23])
        back = te.Fp8Unpadding(2)(out, [17, 23])
        back.backward(drawn(*back.shape))

    yield "padding", pad


def positions() -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield rotary positions, cross entropy, and what has no layer of its own."""
    import kernel_arguments
    import transformer_engine_torch as tex
    from transformer_engine.pytorch.attention.rope import (
        apply_fused_qkv_rotary_pos_emb,
        apply_rotary_pos_emb,
    )
    from transformer_engine.pytorch.cross_entropy import parallel_cross_entropy

    def rope(layout: str, interleaved: bool, dtype: torch.dtype) -> None:
        length, batch, heads, size = 12, 2, 3, 16
        shape = (length, batch) if layout == "sbhd" else (batch, length)
        freqs = drawn(length, 1, 1, size // 2, dtype=torch.float32)
        x = drawn(*shape, heads, size, dtype=dtype, grad=True)
        made = apply_rotary_pos_emb(
            x, freqs, tensor_format=layout, interleaved=interleaved, fused=True
        )
        made.backward(drawn(*made.shape, dtype=dtype))

    for given in itertools.product(
        ("sbhd", "bshd"), (False, True), (torch.float32, torch.bfloat16)
    ):
        yield f"rope {given}", lambda given=given: rope(*given)

    def rope_of_all(layout: str) -> None:
        length, batch, heads, size = 12, 2, 2, 16
        shape = (length, batch) if layout == "sbhd" else (batch, length)
        freqs = drawn(length, 1, 1, size, dtype=torch.float32)
        given = drawn(*shape, heads, 4 * size, grad=True)
        made = apply_fused_qkv_rotary_pos_emb(
            given, freqs, freqs, [2 * size, size, size], tensor_format=layout
        )
        sum(one.float().square().sum() for one in made).backward()

    for layout in ("sbhd", "bshd"):
        yield f"rope of queries, keys and values, {layout}", lambda given=layout: rope_of_all(given)

    def entropy(smoothing: float, mean: bool, dtype: torch.dtype) -> None:
        logits = drawn(2, 10, 96, dtype=dtype, grad=True)
        target = torch.arange(20).reshape(2, 10).cuda()
        target[0, 3] = -100
        loss = parallel_cross_entropy(logits, target, smoothing, mean, None)
        loss.backward(drawn(*loss.shape, dtype=loss.dtype))

    for given in itertools.product((0.0, 0.1), (False, True), (torch.float32, torch.bfloat16)):
        yield f"cross entropy {given}", lambda given=given: entropy(*given)

    def plain(name: str) -> None:
        function = getattr(tex, name)
        arguments = kernel_arguments.arguments(name)
        moved = kernel_arguments.mapped(arguments, lambda tensor: tensor.cuda())
        function(*moved, **kernel_arguments.KEYWORDS.get(name, {}))

    for name in kernel_arguments.COMPARED:
        yield name, lambda name=name: plain(name)


def main(*given: str) -> None:
    """Record all scenes into a file, and print what could not be done."""
    *flags, file = given
    if flags == ["--cpu"]:
        from pytest_precision.te import stand_in

        stand_in.install()
    import kernel_calls

    from pytest_precision.te.stand_in import functions

    with kernel_calls.recorded(sorted(functions())) as calls:
        for part in (layers, optimizers, masters, experts, positions, quantizers):
            for name, scene in part():
                calls.scene = name if part in (quantizers, masters) else ""
                try:
                    scene()
                except Exception as error:
                    text = str(error).strip().splitlines() or [""]
                    where = traceback.extract_tb(error.__traceback__)[-1]
                    print(f"{name}: {type(error).__name__}: {text[0][:200]} ({where.name})"[:400])
    calls.save(Path(file))
    print(len(calls.calls), "calls of", len({call["name"] for call in calls.calls}), "functions")


if __name__ == "__main__":
    main(*sys.argv[1:])
