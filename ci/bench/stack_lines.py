"""Write what docs/reference/catalogue.md says of the lines that failures of frameworks name.

    ci/stacks -k found --precision-report=DIR
    python ci/bench/stack_lines.py DIR/report.json

Each defect of `fixtures/stacks` is planted by an option, so its line is the one that takes effect.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "catalogue.md"
STACKS = ROOT / "fixtures" / "stacks"

HEADING = "## Lines in frameworks"

INTRODUCTION = """\
Tests of `fixtures/stacks` plant a defect into a run of a released framework, by an option or by
what a restart leaves out. *Line* says whether a failure names the line that takes effect, or one
next to it; *kind* whether the first wrong operation tells the kind of error. What a restart has not
brought back, no operation has made wrong: there the last line that loads is right. An average that
is left in the weights' place is wrong where it is put there.
`python ci/bench/stack_lines.py` writes this table of a report of theirs."""


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
    "test_another_rate_is_found": Planted("", "lr=lr", "setting"),
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


def row_of(cell: dict[str, Any]) -> list[str] | None:
    """Return the row of a cell of a report; None of one that is not planted, or did not run."""
    file, _, name = cell["nodeid"].partition("::")
    name = name.partition("[")[0]
    planted = PLANTED.get(name)
    if planted is None or cell["outcome"] != "fail":
        return None
    culprit = cell.get("culprit") or {}
    home = planted.file or Path(file).name
    code = (STACKS / home).read_text().splitlines()
    places = [number for number, line in enumerate(code, 1) if planted.code in line]
    if not places:
        raise SystemExit(f"{home} has no line with {planted.code!r}, where {name} has its defect")
    same = Path(culprit.get("file") or "").name == home
    there = same and any(abs(culprit["line"] - place) <= 1 for place in places)
    named = f"`{Path(culprit['file']).name}:{culprit['line']}`" if culprit.get("file") else "no"
    kind = culprit.get("kind") or "no"
    return [
        name.removeprefix("test_").replace("_", " "),
        Path(file).stem.removeprefix("test_"),
        "yes" if there else named,
        "yes" if kind == planted.kind else f"{kind}, not {planted.kind}",
    ]


def section(cells: list[dict[str, Any]]) -> str:
    """Return the section of the page."""
    rows = sorted(filter(None, map(row_of, cells)))
    lines, kinds = (sum(row[place] == "yes" for row in rows) for place in (2, 3))
    score = (
        f"Of {len(rows)} defects the line is named in {lines} ({lines / len(rows):.0%}), and the "
        f"kind in {kinds} ({kinds / len(rows):.0%})."
    )
    head = [["defect", "framework or file", "line", "kind"], ["---"] * 4]
    table = "\n".join(f"| {' | '.join(row)} |" for row in [*head, *rows])
    return "\n\n".join([HEADING, INTRODUCTION, score, table]) + "\n"


def main() -> None:
    """Write the section, in place of the one that the page has."""
    cells = [one for file in sys.argv[1:] for one in json.loads(Path(file).read_text())["cells"]]
    before = PAGE.read_text().partition(HEADING)[0].rstrip("\n")
    PAGE.write_text(f"{before}\n\n{section(cells)}")


if __name__ == "__main__":
    main()
