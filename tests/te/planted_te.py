"""Defects planted into Transformer Engine's own layers, and what tests run on ranks with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, ClassVar

import golden_vectors as golden
import torch
import torch.distributed as dist

from pytest_precision import Cell, Engine, Observation, Workload, formats, layouts, workloads
from pytest_precision.formats.transformer_engine import storages
from pytest_precision.layouts.optimizer_layouts import FusedAdamEngine
from pytest_precision.layouts.transformer_engine import te_masters
from pytest_precision.layouts.transformer_engine.kernels_there import RECIPES, recipe_of
from pytest_precision.layouts.transformer_engine.layers import (
    with_experts,
    with_linears,
)
from pytest_precision.layouts.transformer_engine.layouts import in_bf16
from pytest_precision.layouts.transformer_engine.shown import values_of
from pytest_precision.layouts.transformer_engine.te_masters import (
    OptimizerMasters,
    OutsideMasters,
    store_master,
)
from pytest_precision.te import cuda
from pytest_precision.workloads.batches import Microbatch

LARGEST = 1 << 15
"""Elements of the golden inputs that are quantized here; all of them are in `tests/formats`."""


class NeverRead(OutsideMasters):
    """Updates land in copies of the weights, which the forward does not read."""

    def update_weights(self) -> None:
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in self.pairs:
                store_master(parameter.detach().clone(), master)


class StaleCache(OutsideMasters):
    """The quantized weights of the first step are used for good."""

    def begin(self) -> None:
        pass


class AddsAfterEval(OutsideMasters):
    """The step after an evaluation adds to the gradients of the step before it."""

    dirty = False

    def evaluate(self) -> None:
        super().evaluate()
        self.dirty = True

    def zero_gradients(self) -> None:
        if not self.dirty:
            super().zero_gradients()
        self.dirty = False


class DequantizedMasters(OutsideMasters):
    """The first masters are what is left of the weights after they were quantized."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        with torch.no_grad():
            for parameter, master in self.pairs:
                master.copy_(values_of(parameter))


class AsLoaded(OutsideMasters):
    """Weights stay as Transformer Engine has loaded them: quantized anew from rowwise values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super(OutsideMasters, self).load_state_dict(state)
        with torch.no_grad():
            for (_, master), saved in zip(self.pairs, state["master"], strict=True):
                master.copy_(saved)


class KeptHistory(OutsideMasters):
    """The amaxes of the forward are recorded, and neither rolled nor made into scales."""

    def forward_backward(self, step: int) -> None:
        from transformer_engine.pytorch.quantization import FP8GlobalStateManager as State

        update = State.reduce_and_update_fp8_tensors
        State.reduce_and_update_fp8_tensors = lambda forward=True: forward or update(forward)
        try:
            super().forward_backward(step)
        finally:
            State.reduce_and_update_fp8_tensors = update


class OwnAmaxes(OutsideMasters):
    """Ranks keep their own amaxes: their scales are not the same."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.forward_model.recipe.reduce_amax = False


class WithoutExtraState(OutsideMasters):
    """A checkpoint is loaded without what modules keep beside their weights."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in state["model"]:
            if name.endswith("_extra_state"):
                state["model"][name] = torch.empty(0, dtype=torch.uint8)
        super().load_state_dict(state)


class StaleColumns(OutsideMasters):
    """The operand of the backward stays as it was made at first."""

    def store_masters(self) -> None:
        kept = [
            (weight, weight._columnwise_data.clone())
            for weight, _ in self.pairs
            if storages.family(weight)
        ]
        super().store_masters()
        for weight, columns in kept:
            weight._columnwise_data.copy_(columns)


class OwnBytes(OutsideMasters):
    """Each rank casts its elements, and the bytes of the other ranks never arrive."""

    def store_masters(self) -> None:
        self.cast_by_shards = True
        send, te_masters._send = te_masters._send, lambda *given: None
        try:
            super().store_masters()
        finally:
            te_masters._send = send


def _made(kind: type[OutsideMasters], workload: Workload, cell: Cell) -> Engine:
    model = with_experts(workload.model(cell), cell, single_grouped_weight=True)
    return kind(workload, cell, in_bf16(model))


@layouts.uses_transformer_engine
def planted(workload: Workload, cell: Cell, *, kind: type[OutsideMasters]) -> Engine:
    return _made(kind, workload, cell)


@layouts.uses_transformer_engine
def planted_linears(workload: Workload, cell: Cell, *, kind: type[OutsideMasters]) -> Engine:
    return kind(workload, cell, in_bf16(with_linears(workload.model(cell), cell)))


@layouts.fresh_ranks
@layouts.uses_transformer_engine
def experts_on_hopper(workload: Workload, cell: Cell, **options: Any) -> Engine:
    """Train experts where Transformer Engine has grouped weights in block scaling."""
    cuda.enter((9, 0))
    return layouts.te_experts(workload, cell, **options)


@layouts.fresh_ranks
@layouts.uses_transformer_engine
def on_hopper(workload: Workload, cell: Cell, **options: Any) -> Engine:
    """Train linear layers where the GEMM of fp8 reads one order, so that transposes are held."""
    cuda.enter((9, 0))
    return layouts.te_linears(workload, cell, **options)


class OneMicrobatch(workloads.mlp):
    """Steps of one microbatch a rank, after which Transformer Engine and the emulation update."""

    def microbatches(self, cell: Cell, step: int) -> list[Microbatch]:
        return super().microbatches(cell, step)[-cell.world_size :]


class Idle:
    """Every third microbatch has no row, the only one of a rank in the short step among them."""

    def microbatches(self, cell: Cell, step: int) -> list[Microbatch]:
        made: list[Microbatch] = super().microbatches(cell, step)  # type: ignore[misc]
        return [without_rows(one) if n % 3 == 1 else one for n, one in enumerate(made)]


def without_rows(microbatch: Microbatch) -> Microbatch:
    return microbatch._replace(inputs=microbatch.inputs[:0], targets=microbatch.targets[:0])


class IdleMoe(Idle, workloads.moe):
    """Experts to which a rank sends nothing."""


class IdleMlp(Idle, workloads.mlp):
    """Linear layers of which a rank multiplies nothing."""


class Emulated(FusedAdamEngine):
    """Hides amaxes that Transformer Engine's tensors do not hold, and what the other has apart."""

    unobservable: ClassVar = {"scale": "other names", "amax": "likewise"}

    def show(self, kind: str, name: str, *given: Any, **more: Any) -> Iterator[Observation]:
        apart = kind == "recorded_amax" or (name.endswith(".amax") and "fp8" in self.cell.precision)
        return iter(()) if apart else super().show(kind, name, *given, **more)


def emulated(workload: Workload, cell: Cell) -> Engine:
    """Train emulated linear layers."""
    engine = layouts.fused_adam(workload, cell)
    engine.__class__ = Emulated
    return engine


class Real(OptimizerMasters):
    """Hides the scales of delayed scaling, which the emulation has under other names."""

    unobservable: ClassVar = {"scale": "other names", "amax": "likewise"}

    def show(self, kind: str, name: str, *given: Any, **more: Any) -> Iterator[Observation]:
        apart = kind == "recorded_amax" or name.startswith("microbatch ")
        return iter(()) if apart else super().show(kind, name, *given, **more)


@layouts.uses_transformer_engine
def real(workload: Workload, cell: Cell) -> Engine:
    """Train Transformer Engine's linear layers, likewise."""
    return Real(workload, cell, in_bf16(with_linears(workload.model(cell), cell)))


@layouts.uses_transformer_engine
def remainders_of_bytes() -> tuple[str, bool]:
    """Update quantized weights with remainders; return the dtype of the master, and if it went."""
    import transformer_engine.pytorch as te
    from transformer_engine.common.recipe import MXFP8BlockScaling
    from transformer_engine.pytorch.optimizers import FusedAdam

    with te.quantized_model_init(recipe=MXFP8BlockScaling()):
        weight = te.Linear(32, 32, bias=False, params_dtype=torch.bfloat16).weight
    adam = FusedAdam([weight], master_weights=True, store_param_remainders=True)
    weight.grad = torch.ones(32, 32, dtype=torch.bfloat16)
    try:
        adam.step()
    except TypeError:
        return str(adam.state[weight]["master_param"].dtype), False
    return str(adam.state[weight]["master_param"].dtype), True


@layouts.uses_transformer_engine
def not_sharded_by_fsdp2() -> dict[str, str]:
    """Shard quantized weights by `fully_shard` and update them; return what is not, and how."""
    import transformer_engine.pytorch as te
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from transformer_engine.pytorch.optimizers import FusedAdam

    failed = {}
    for precision, width in product(RECIPES, (64, 128)):
        recipe = recipe_of(precision)
        try:
            with te.quantized_model_init(recipe=recipe):
                layer = te.Linear(width, width, params_dtype=torch.bfloat16)
            fully_shard(layer, mesh=init_device_mesh("cuda", (1,)))
            if not storages.family(layer.weight.to_local()):
                failed[f"{precision} {width}"] = "dequantized"
            adam = FusedAdam(layer.parameters(), master_weights=True)
            for _ in range(2):
                with te.autocast(recipe=recipe):
                    y = layer(torch.ones(32, width, dtype=torch.bfloat16))
                y.float().square().sum().backward()
                adam.step()
                adam.zero_grad()
        except (RuntimeError, ValueError) as error:
            failed[f"{precision} {width}"] = str(error)
    return failed


def quantizers() -> dict[str, Callable[[], Any]]:
    """Return the quantizers of Transformer Engine by the names of the formats that they are."""
    from transformer_engine.pytorch.constants import DType
    from transformer_engine.pytorch.tensor import float8_blockwise_tensor as blocks
    from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer
    from transformer_engine.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer
    from transformer_engine.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer

    e4m3, e5m2 = DType.kFloat8E4M3, DType.kFloat8E5M2
    both = {"rowwise": True, "columnwise": True}

    def block(dtype: Any, dim: int, powers: bool) -> Any:
        return blocks.Float8BlockQuantizer(
            dtype, block_scaling_dim=dim, force_pow_2_scales=powers, **both
        )

    return {
        "fp8_current_e4m3": lambda: Float8CurrentScalingQuantizer(e4m3, device="cuda", **both),
        "fp8_current_e5m2": lambda: Float8CurrentScalingQuantizer(e5m2, device="cuda", **both),
        "fp8_block_128x128_e4m3_f32": lambda: block(e4m3, 2, False),
        "fp8_block_1x128_e4m3_pow2": lambda: block(e4m3, 1, True),
        "fp8_block_1x128_e5m2_pow2": lambda: block(e5m2, 1, True),
        "mxfp8_e4m3": lambda: MXFP8Quantizer(e4m3, **both),
        "mxfp8_e5m2": lambda: MXFP8Quantizer(e5m2, **both),
        "nvfp4_1d": lambda: NVFP4Quantizer(**both),
        "nvfp4_1d_rht": lambda: NVFP4Quantizer(with_rht=True, with_post_rht_amax=True, **both),
        "nvfp4_2d": lambda: NVFP4Quantizer(with_2d_quantization=True, **both),
        "nvfp4_1d_row": lambda: NVFP4Quantizer(row_scaled_nvfp4=True, **both),
        "nvfp4_2d_4over6": lambda: NVFP4Quantizer(
            with_2d_quantization=True, nvfp4_use_4over6=True, nvfp4_e4m3_max=448, **both
        ),
    }


@layouts.uses_transformer_engine
def differing_from_golden() -> dict[str, list[str]]:
    """Quantize the golden inputs by Transformer Engine's quantizers; return what differs."""
    found: dict[str, list[str]] = {}
    for name, make in quantizers().items():
        wrong, compared = found.setdefault(name, []), 0
        inputs = name if name in golden.INPUTS else "nvfp4_1d"
        for case in range(len(golden.cases(golden.INPUTS[inputs]))):
            x = golden.matrix(inputs, case)
            multiple = 16 if name.startswith("nvfp4") else 32
            unsuitable = x.shape[0] % multiple or x.shape[1] % multiple
            if case == golden.SPECIAL or unsuitable or x.numel() > LARGEST:
                continue
            compared += 1
            made = make()(x)
            known = formats.by_name(name).quantize(x)
            for side in storages.held_sides(made):
                held, expected = storages.operand(made, side), known.operands[side]
                assert held is not None
                for field in ("data", "scale", "amax"):
                    if field == "amax" and not name.startswith("nvfp4"):
                        continue
                    ours, theirs = getattr(held, field), getattr(expected, field)
                    if golden.differing_bytes(ours.contiguous(), theirs.contiguous()):
                        wrong.append(f"case {case}: {side}.{field}")
        if not compared:
            wrong.append("nothing was compared")
    return found


@layouts.uses_transformer_engine
def refused_names() -> list[str]:
    """Call what the stand-in does not compute; return what it says."""
    import transformer_engine_torch as tex

    said = []
    for name in ("fused_attn_fwd", "ep_dispatch", "newton_schulz"):
        try:
            getattr(tex, name)()
        except NotImplementedError as error:
            said.append(str(error))
    return [*said, str(hasattr(tex, "flash_attention"))]


@layouts.uses_transformer_engine
def parts_of_blocks() -> list[str]:
    """Quantize a half of a block in each direction; return what is said."""
    said = []
    for name, shape in (
        ("mxfp8_e4m3", (16, 1, 64)),
        ("mxfp8_e4m3", (32, 48)),
        ("nvfp4_1d", (8, 16)),
    ):
        try:
            quantizers()[name]()(torch.ones(shape, dtype=torch.bfloat16))
        except RuntimeError as error:
            said.append(str(error).partition(";")[0])
    return said


@layouts.uses_transformer_engine
def gathered_together() -> list[list[float]]:
    """Gather bytes and then bf16 in one block, as Megatron-core does for NVFP4, and with a wait."""
    found = []
    for waits in (False, True):
        given = torch.full((4,), 10, dtype=torch.uint8), torch.ones(6, dtype=torch.bfloat16)
        made = [torch.zeros_like(tensor) for tensor in given]
        with dist._coalescing_manager(async_ops=waits) as manager:
            for out, tensor in zip(made, given, strict=True):
                dist.all_gather_into_tensor(out, tensor, async_op=waits)
        found += [tensor.tolist() for tensor in made]
        manager.wait()
    return found


@layouts.uses_transformer_engine
def odd_batches() -> list[bool]:
    """Quantize [32, n, 64] and the matrix of its rows; return whether the bytes are the same."""
    found = []
    for n in (1, 3):
        x = torch.randn(32, n, 64).bfloat16()
        batch, rows = (quantizers()["nvfp4_1d"]()(one) for one in (x, x.reshape(-1, 64)))
        pairs = ((storages.operand(one, side) for one in (batch, rows)) for side in storages.SIDES)
        found.append(all(torch.equal(a.data, b.data) for a, b in pairs if a and b))
    return found


@layouts.uses_transformer_engine
def transformed_without_signs() -> list[bool]:
    """Compare NVFP4 after the Hadamard transform without random signs with what it must be.

    Returns:
        Whether the columnwise values are near those of the transform by Transformer Engine's own
        matrix, and whether the rowwise bytes are those with signs.
    """
    import transformer_engine.pytorch as te
    from transformer_engine.pytorch.tensor.nvfp4_tensor import get_rht_matrix

    torch.manual_seed(3)
    x = torch.randn(64, 32, dtype=torch.bfloat16)
    options = {"with_rht": True, "with_post_rht_amax": True}
    made = te.NVFP4Quantizer(**options, with_random_sign_mask=False)(x)
    signed = te.NVFP4Quantizer(**options)(x)
    blocks = x.t().float().reshape(-1, 16)
    wanted = (blocks @ get_rht_matrix(False, 0).float()).reshape(32, 64)
    found = storages.values(made, "columnwise").t()
    largest = float((found - wanted).abs().max() / wanted.abs().max())
    same = torch.equal(made._rowwise_data, signed._rowwise_data)
    return [largest < 0.2, same]


@layouts.uses_transformer_engine
def frozen_and_reset() -> list[bool]:
    """Freeze a layer on `meta` and have it made; return whether its parameters are trained."""
    import transformer_engine.pytorch as te

    layer = te.LayerNormLinear(32, 32, bias=False, normalization="RMSNorm", device="meta")
    layer.requires_grad_(False)
    layer.reset_parameters()
    return [parameter.requires_grad for parameter in layer.parameters()]
