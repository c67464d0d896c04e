"""Checks as report.json has them, and pages as tests read them."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from made_up import culprit, divergence, verdict

SPREAD = {
    "op": [-1, 0, 1, 2],
    "operation": ["init", "train", "eval", "train"],
    "step": [0, 1, 1, 2],
    "kinds": {
        "loss": {"dtypes": [["float32", "float32"]], "state": [".", "=", "~", "values"]}
        | {"mismatched": [None, None, None, 0.25], "rel_l2": [None, None, None, 0.125]},
        "param": {"dtypes": [["bfloat16", "float32"]], "state": ["=", "=", ".", "dtype NaN"]}
        | {"mismatched": [None, None, None, 1.0], "max_ulp": [None, None, None, 3]},
    },
    "tensors": {
        "param": {
            "name": ["embed.weight", "layers.0.weight", "layers.1.weight"],
            "rel_l2": [[0.0, 0.0, None, 0.0], [0.0, 0.0, None, 1e-6], [0.0, 0.0, None, 0.5]],
            "tensors": 3,
        }
    },
}

CURVES = {
    "step": [1, 2, 3],
    "loss": {"candidate": [2.0, 1.5, "nan"], "reference": [2.0, 1.25, 1.0]},
    "grad_norm": {"candidate": [4.0, 3.5, 3.0], "reference": [4.0, 3.0, None]},
    "lost_updates": {"candidate": [0.0, 0.5, 0.5], "reference": [0.0, 0.0, None]},
    "absorbed": {"candidate": [0.0, 0.5, 0.5], "reference": [0.0, 0.0, None]},
}


def entry(status: str = "pass", number: int = 0, **changes: Any) -> dict[str, Any]:
    """A check as report.json has it, of a cell of its own."""
    reason = "param differs at step 2" if status in ("fail", "error", "vacuous") else ""
    own: dict[str, Any] = {
        "axes": {"precision": "bf16", "world_size": number % 2 + 1, "seed": number // 2},
        "nodeid": f"test_moe.py::test_experts[bf16-{number}]",
    }
    if status == "fail":
        own |= {"divergence": divergence(), "spread": SPREAD, "curves": CURVES}
        own |= {"histogram": {"by_bits": [5, 0, 3], "nan": 1, "infinite": 0}, "command": "pytest x"}
        own |= {"gate": "agreement", "culprit": culprit()}
    place = {"status": status, "pytest": "", "number": number, "line": 3}
    return verdict(status, reason, **own | changes) | place


class Element:
    """An element of a page: its name, attributes, children, and the text in it and in them."""

    def __init__(self, name: str, attributes: dict[str, str | None]) -> None:
        self.name, self.attributes = name, attributes
        self.children: list[Element] = []
        self.text = ""

    def all(self, name: str, **attributes: str) -> list[Element]:
        """All elements of a name in this one, with these attributes."""
        wanted = attributes.items() <= self.attributes.items()
        own = [self] if self.name == name and wanted else []
        return own + [found for child in self.children for found in child.all(name, **attributes)]


class _Builder(HTMLParser):
    VOID = ("meta", "input", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, dict(attrs))
        self.open[-1].children.append(element)
        if tag not in self.VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open[-1].children.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].name == tag, f"</{tag}> closes <{self.open[-1].name}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data


def parse(page: Path) -> Element:
    """Parse a page; fail if an element is not closed where it should be."""
    builder = _Builder()
    builder.feed(page.read_text("utf-8"))
    (root,) = builder.open
    return root
