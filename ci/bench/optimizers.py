"""The table of optimizers in docs/reference/layouts.md: `python ci/bench/optimizers.py`.

Each trains `workloads.gpt` for 40 steps at lr 1e-4 on one rank, bf16 compute, and is compared with
AdamW on fp32 masters: how many bytes per parameter it takes between steps, which updates were
lost, and how far the effective weights ended from the reference's, over the norm of the total
update.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pytest_precision import layouts, workloads
from pytest_precision.matrix.cell import Cell
from pytest_precision.options import Settings
from pytest_precision.plugin.resources import Resources
from pytest_precision.ranks.code.import_path import ImportPath

STEPS = 40
BF16, FP32 = Cell("bf16", "bf16"), Cell("bf16", "fp32")
REMAINDERS = partial(layouts.fused_adam, store_param_remainders=True)
ROWS: dict[str, tuple[Any, Cell]] = {
    "`master_adamw`": (layouts.master_adamw, BF16),
    "`adamw`, fp32 storage": (layouts.adamw, FP32),
    "`adamw`, bf16 storage": (layouts.adamw, BF16),
    "`fused_adam`": (layouts.fused_adam, BF16),
    "`fused_adam`, remainders": (REMAINDERS, BF16),
    "`fused_adam`, remainders, bf16 moments": (
        partial(REMAINDERS, exp_avg_dtype="bf16", exp_avg_sq_dtype="bf16"),
        BF16,
    ),
    "`fused_adam`, no master": (partial(layouts.fused_adam, master_weights=False), BF16),
    "`any_precision_adamw`": (layouts.any_precision_adamw, BF16),
    "`any_precision_adamw`, no Kahan": (
        partial(layouts.any_precision_adamw, use_kahan_summation=False),
        BF16,
    ),
}


def train(layout: ImportPath, workload: ImportPath, cell: Cell) -> dict[str, Any]:
    """On a rank: what the table says of one layout, and its effective weights."""
    import torch

    from pytest_precision.engine.engine import STEP_PHASES
    from pytest_precision.engine.observation import tensors_in
    from pytest_precision.probes.declared_rule.update_watcher import UpdateWatcher
    from pytest_precision.probes.lost_updates.update_log import Counts, UpdateLog

    trained = workload.resolve()()
    engine = layout.resolve()(trained, cell)
    watcher = UpdateWatcher(trained, cell)

    def weights() -> dict[str, np.ndarray]:
        return {name: engine.effective(p).detach().double().numpy() for name, p in engine.masters()}

    before = {name: weight.copy() for name, weight in weights().items()}
    for step in range(1, 1 + STEPS):
        engine.forward_backward(step)
        for phase in STEP_PHASES[1:]:
            with watcher.around(engine, phase, step):
                getattr(engine, phase)()
    with tempfile.TemporaryDirectory() as folder:
        watcher.write(Path(folder), 0)
        lost = sum(UpdateLog.read(Path(folder), 1).totals().values(), Counts())
    state = {
        (key, tensor.dtype): tensor
        for values in engine.optimizer.state.values()
        for key, value in values.items()
        for _, tensor in tensors_in(value)
        if tensor.dim()
    }
    tensors = [*engine.model.parameters(), *engine.optimized_model.parameters()]
    tensors += [t for v in engine.optimizer.state.values() for _, t in tensors_in(v)]
    unique = {tensor.data_ptr(): tensor.numel() * tensor.element_size() for tensor in tensors}
    return {
        "bytes": sum(unique.values()) / sum(p.numel() for p in engine.model.parameters()),
        "state": ", ".join(
            f"{k} {str(d).removeprefix('torch.')}" for k, d in sorted(state, key=str)
        ),
        "lost": lost.lost_by_size,
        "before": before,
        "after": weights(),
        "dtype": str(next(engine.model.parameters()).dtype).removeprefix("torch."),
        "torch": torch.__version__,
    }


def norm(weights: dict[str, np.ndarray], others: dict[str, np.ndarray]) -> float:
    """Of the difference of two sets of weights."""
    return float(np.sqrt(sum(np.square(weights[n] - others[n]).sum() for n in weights)))


def main() -> None:
    """Print the table in Markdown."""
    resources = Resources()
    try:
        ranks = resources.ranks(Settings(device="cpu", timeout=300))
        workload = ImportPath.of(partial(workloads.gpt, lr=1e-4))
        figures = {
            name: ranks.run(1, train, ImportPath.of(layout), workload, cell)[0]
            for name, (layout, cell) in ROWS.items()
        }
    finally:
        resources.close()
    reference = figures["`master_adamw`"]
    update = norm(reference["after"], reference["before"])
    print("| layout | parameters | optimizer state | bytes per parameter | lost | error |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, row in figures.items():
        error = norm(row["after"], reference["after"])
        print(
            f"| {name} | {row['dtype']} | {row['state']} | {row['bytes']:.1f} "
            f"| {100 * row['lost']:.1f} % | {error / update:.3f} |"
        )


if __name__ == "__main__":
    main()
