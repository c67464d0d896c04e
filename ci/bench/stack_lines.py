"""Write what docs/evidence/catalogue.md says of the lines that failures of frameworks name.

    ci/stacks -k "found or named" -o precision_lines=auto --precision-report=DIR
    python ci/bench/stack_lines.py DIR/report.json

Each defect of `fixtures/stacks` is planted by an option, so its line is the one that takes effect.
Those of `fixtures/megatron` are in the function that takes the place of Megatron-core's. Rows of
tests that no report has stay as they are.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "evidence" / "catalogue.md"
FOLDERS = tuple(ROOT / "fixtures" / name for name in ("stacks", "megatron"))

HEADING = "## Lines in frameworks"

INTRODUCTION = """\
Tests of `fixtures/stacks` plant a defect by an option or leave a state out of a restart; tests of
`fixtures/megatron` replace one function of Megatron-core or Transformer Engine. The column
*line* says whether the failure names the planted line or a line next to it; the planted line of a
restart is the last line that loads a state. The column *kind* says whether the culprit's operation
alone gives the kind of error."""


class Planted(NamedTuple):
    """A defect.

    Attributes:
        file: that has the line; empty for that of the test.
        code: of the line that takes effect.
        kind: of error that the first wrong operation makes.
    """

    file: str
    code: str
    kind: str


PLANTED = {
    "test_moments_that_were_not_loaded_are_found": Planted(
        "test_checkpoints.py", 'states["optimizer"]["state"] = {}', "missing"
    ),
    "test_an_average_that_is_not_restored_is_found": Planted(
        "test_diffusers.py", "parts[name].load_state_dict(saved[name])", "missing"
    ),
    "test_a_decay_that_is_forgotten_is_found": Planted(
        "test_diffusers.py", 'parts["average"].step(model.parameters())', "constant"
    ),
    "test_weights_that_are_not_put_back_are_found": Planted(
        "test_diffusers.py", "average.copy_to(model.parameters())", "extra"
    ),
    "test_clipping_by_value_is_found": Planted(
        "test_lightning.py", "trainer.fit(Regression(), ckpt_path=resume_from)", "extra"
    ),
    "test_a_loss_that_is_not_divided_is_found": Planted(
        "test_lightning.py",
        "fabric.backward(loss / cell.accumulated if divided else loss)",
        "missing",
    ),
    "test_a_clip_of_samples_is_found": Planted("test_opacus.py", "optimizer.step()", "constant"),
    "test_another_noise_after_a_restart_is_found": Planted(
        "test_opacus.py", 'optimizer.load_state_dict(saved["optimizer"])', "missing"
    ),
    "test_another_learning_rate_is_found": Planted("", "lr=lr", "setting"),
    "test_a_counter_that_a_state_dict_forgets_is_found": Planted(
        "resumed.py", 'optimizer.load_state_dict(held["optimizer"])', "missing"
    ),
    "test_a_restart_with_the_adapter_alone_is_found": Planted(
        "test_trl.py", "trainer.train(resume_from_checkpoint=checkpoint)", "missing"
    ),
    "test_another_beta_is_found": Planted(
        "test_trl.py", "trainer.train(resume_from_checkpoint=checkpoint)", "constant"
    ),
}


NOTHING = "return lambda *given, **options: None"

REPLACED = {
    "the optimizer updates weights that the forward never reads": (
        "weight.rowwise_data = weight.rowwise_data.clone()",
        "inputs",
    ),
    "the shared buffer is not zeroed after an evaluation": (NOTHING, "missing"),
    "masters are made of dequantized weights": (NOTHING, "missing"),
    "one rank computes with the weights of the first step": (
        "once(model) if dist.get_rank() == 1",
        "missing",
    ),
    "all ranks compute with the weights of the first step": (
        'if not getattr(model, "marked", False):',
        "missing",
    ),
    "a gradient is rounded before it is added": ("main_grad.add_(product.bfloat16())", "cast"),
    "backward reads the weights of the start": (
        "parameter._columnwise_data.copy_(before)",
        "inputs",
    ),
    "clipping scales nothing": (NOTHING, "missing"),
    "states are made by a step on zero gradients": (
        "optimizer._init_optimizer_states_with_dummy_values()",
        "extra",
    ),
    "norms get weight decay": ("lambda original: lambda config: {}", "setting"),
    "gradients of one rank are not added to those of the other": (NOTHING, "missing"),
    "an evaluation leaves its mode behind": ("original(self, False) if mode else self", "setting"),
}
"""Defects of `fixtures/megatron/test_planted.py`: code and kind, as of `Planted`."""


def planted_in(name: str) -> tuple[str, Planted] | None:
    """Return what the test of a name has planted, in words too; None of another test."""
    test, _, cell = name.partition("[")
    for words, (code, kind) in REPLACED.items():
        if cell.endswith(f"-defect_{words.replace(' ', '_')}]"):
            return words, Planted("test_planted.py", code, kind)
    planted = PLANTED.get(test)
    words = test.removeprefix("test_").replace("_", " ")
    return planted and (words.removesuffix(" is found").removesuffix(" are found"), planted)


def row_of(cell: dict[str, Any]) -> list[str] | None:
    """Return the row of a cell of a report; None of one that is not planted, or did not run."""
    file, _, name = cell["nodeid"].partition("::")
    match = planted_in(name)
    if match is None or cell["outcome"] != "fail":
        return None
    words, planted = match
    culprit = cell.get("culprit") or {}
    home = planted.file or Path(file).name
    folder = next(folder for folder in FOLDERS if (folder / home).exists())
    code = (folder / home).read_text().splitlines()
    places = [number for number, line in enumerate(code, 1) if planted.code in line]
    if not places:
        raise SystemExit(f"{home} has no line with {planted.code!r}, where {name} has its defect")
    same = Path(culprit.get("file") or "").name == home
    is_at_place = same and any(abs(culprit["line"] - place) <= 1 for place in places)
    named = f"`{Path(culprit['file']).name}:{culprit['line']}`" if culprit.get("file") else "no"
    kind = culprit.get("kind") or "no"
    return [
        words,
        Path(file).stem.removeprefix("test_"),
        "yes" if is_at_place else named,
        "yes" if kind == planted.kind else f"{kind}, not {planted.kind}",
    ]


def section(cells: list[dict[str, Any]], before: str) -> str:
    """Return the section of the page, which was `before`."""
    old_rows = [
        line.strip("| ").split(" | ") for line in before.splitlines() if line.startswith("| ")
    ]
    rows_by_name = {
        (words, row[1]): [words, *row[1:]] for row in old_rows[2:] for words in row[0].split("; ")
    }
    rows_by_name |= {(row[0], row[1]): row for row in filter(None, map(row_of, cells))}
    rows = sorted(rows_by_name.values())
    lines, kinds = (sum(row[place] == "yes" for row in rows) for place in (2, 3))
    score = (
        f"The line is right for {lines} of {len(rows)} defects ({lines / len(rows):.0%}), the kind "
        f"for {kinds} ({kinds / len(rows):.0%})."
    )
    head = [["defect", "framework or file", "line", "kind"], ["---"] * 4]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [*head, *joined(rows)])
    return "\n\n".join([HEADING, INTRODUCTION, score, table]) + "\n"


def joined(rows: list[list[str]]) -> list[list[str]]:
    """Join the defects of a framework of which the same is said."""
    words_by_rest: dict[tuple[str, ...], list[str]] = {}
    for words, *rest in rows:
        words_by_rest.setdefault(tuple(rest), []).append(words)
    return [["; ".join(words), *rest] for rest, words in words_by_rest.items()]


def main() -> None:
    """Write the section, in place of the one that the page has."""
    cells = [cell for file in sys.argv[1:] for cell in json.loads(Path(file).read_text())["cells"]]
    others, _, later = PAGE.read_text().partition(HEADING)
    before, suites, rest = later.partition("\n\n## ")  # sections that follow stay
    others = others.rstrip("\n")
    written = section(cells, before)
    PAGE.write_text(f"{others}\n\n{written.rstrip() if suites else written}{suites}{rest}")


if __name__ == "__main__":
    main()
