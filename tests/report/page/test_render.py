"""The page: all that report.json says, in an order for people, and inert whatever the names are."""

from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest
from made_up import divergence
from pages import entry, parse

from pytest_precision.errors import ReportError
from pytest_precision.report.page.doc_links import DOCS
from pytest_precision.report.page.render import write_page

HOSTILE = "</script><img src=x onerror=alert(1)>\"'`{{7*7}}&lt;\u202egnp.exe\x1b[31m"


def classes_of(element):
    """The classes of an element."""
    return (element.attributes.get("class") or "").split()


def test_the_order_of_the_page(make):
    """Verdict, what failing cells share, failures, cells, what was left out, environment."""
    cells = [entry("fail" if n % 2 else "pass", n, left_out={"rng": "by design"}) for n in range(8)]
    page = parse(make(*cells))
    assert [head.text for head in page.all("h1")] == ["4 of 8 cells failed"]
    headings = ["Failures", "Cells", "Not compared", "Environment"]
    assert [head.text for head in page.all("h2")] == headings
    statement = "all 4 failing cells have world_size=2; no passing cell has"
    assert page.all("h3")[0].text == statement


def test_one_cell_of_a_reason_is_shown_in_full(make):
    """Its sentence, its facts, the heat table, the plots and the command; the others by name."""
    page = parse(make(*(entry("fail", n) for n in range(5))))
    (failure,) = page.all("details", **{"class": "failure"})
    assert "5×" in failure.text
    assert "pytest x" in failure.text
    (shown,) = [part for part in failure.all("div") if "example" in classes_of(part)]
    assert len(shown.all("svg", role="img")) == 7
    assert 1 <= len(failure.all("template")) < 4
    (cells,) = failure.all("ul", **{"class": "cells"})
    assert len(cells.children) == 5


def test_heat_table(make):
    """Kinds by operations, as states and shares, with further figures as a label."""
    table, _ = parse(make(entry("fail", culprit=None))).all("table", **{"class": "heat"})
    rows = [[field.text for field in row.children] for row in table.all("tr")]
    assert rows == [
        ["kind", "dtype", "init", "1", "eval", "2"],
        ["loss", "float32", ".", "=", "~", "25 %"],
        ["param", "bfloat16, not float32", "=", "=", ".", "dtype NaN 100 %"],
    ]
    assert table.all("td")[-1].attributes["title"] == "worst ulp 3"


def test_tensor_by_tensor(make):
    """Tensors down, steps across, coloured by the logarithm; words say where it starts."""
    _, table = parse(make(entry("fail", culprit=None))).all("table", **{"class": "heat"})
    rows = [[field.text for field in row.children] for row in table.all("tr")]
    assert rows == [
        ["tensor", "init", "1", "eval", "2"],
        ["embed.weight", "=", "=", ".", "="],
        ["layers.0.weight", "=", "=", ".", "1e-06"],
        ["layers.1.weight", "=", "=", ".", "0.5"],
    ]
    assert [table.all("td")[n].attributes["class"] for n in (7, 11)] == ["heat1", "heat4"]
    text = parse(make(entry("fail", culprit=None))).text
    assert "2 of 3 tensors differ, the first is layers.0.weight." in text


def test_a_line_for_each_reason(make):
    """How many cells, what differs first, and a link to the failure below."""
    broken = entry("error", 8) | {"reason": "rank 1 died"}
    page = parse(make(*(entry("fail", n) for n in range(3)), broken))
    (table,) = page.all("table", **{"class": "reasons"})
    rows = [[field.text for field in row.children] for row in table.all("tr")]
    assert rows[1:] == [
        ["F 3", "param", "2", "layers.0.weight", "param differs at step 2"],
        ["E 1", "", "", "", "rank 1 died"],
    ]
    assert [link.attributes["href"] for link in table.all("a")] == ["#r1", "#r2"]


def test_what_ran_stands_on_top(make):
    """Date, commit, branch, torch and device; the host only where the report has it."""
    run = {"date": "2026-11-25T14:03:11+00:00", "commit": "0123456789abcdef", "branch": "main"}
    runs = [run | {"dirty": True, "host": "gpu7"}, run | {"date": "2026-11-25T14:01:00+00:00"}]
    gpu = {"torch": "2.13", "gpu": "NVIDIA H100"}
    page = make(entry(), runs=runs, versions={"torch": "2.13"}, ranks=[gpu], device="auto")
    (lines,) = parse(page).all("ul", **{"class": "run"})
    assert [line.text for line in lines.children] == [
        "2026-11-25 14:01 UTC · commit 0123456789ab on main",
        "2026-11-25 14:03 UTC · commit 0123456789ab on main, with uncommitted changes · host gpu7",
        "torch 2.13 · NVIDIA H100",
    ]


def test_a_failure_leads_to_where_to_look(make):
    """Its first kind to the row of the documentation, and so does what it looks like."""
    likeness = {"signature": "half of it", "error": "per rank"}
    page = parse(make(entry("fail", divergence=divergence(**likeness))))
    links = {link.text: link.attributes["href"] for link in page.all("a")}
    assert links["param"] == f"{DOCS}/how-to/read-a-failing-cell.md#first-param"
    assert links["half of it"] == f"{DOCS}/how-to/read-a-failing-cell.md#error-per-rank"


def test_the_command_that_runs_all_failing_cells(make):
    """As long as it can be read; pytest knows the last failures. One cell has its own."""
    plain = [entry("fail", n, command="") for n in range(9)]
    for number, words in (
        (1, None),
        (2, "test_moe.py::test_experts[bf16-1]"),
        (9, "--last-failed"),
    ):
        (failures,) = parse(make(*plain[:number])).all("section", **{"aria-labelledby": "failures"})
        shown = [part.text for part in failures.children if "again" in classes_of(part)]
        assert [words in text for text in shown] == ([True] if words else [])


def test_values_of_filters_are_in_order(make):
    """Numbers by size, also those in texts, however the matrix has them."""
    sizes = [(8, "mx10", 1), (1, "mx9", 2), (2, "bf16", 3)]
    cells = [entry(number=n, axes={"world_size": w, "form": f}) for w, f, n in sizes]
    groups = {g.all("legend")[0].text: g for g in parse(make(*cells)).all("fieldset")}
    shown = {name: [one.text for one in group.all("label")] for name, group in groups.items()}
    assert shown == {"world_size": ["1", "2", "8"], "form": ["bf16", "mx9", "mx10"]}


def test_what_was_run_again_is_told(make):
    """A cell that passed after a rerun is green, and not like one that passed at once."""
    page = parse(make(entry() | {"reruns": 2}, entry(number=1)))
    (told,) = page.all("section", **{"aria-labelledby": "rerun"})
    assert "[bf16-0] was run 2 more times after a failure, and then passed" in told.text


def test_grid(make):
    """A mark has a label with the values of its axes, and leads to its failure."""
    page = parse(make(*(entry("fail" if n == 3 else "pass", n) for n in range(6))))
    (grid,) = page.all("table", **{"class": "grid"})
    assert [[part.text for part in row.children] for row in grid.all("tr")] == [
        ["seed", "0", "1", "2"],
        ["world_size"],
        ["1", ".", ".", "."],
        ["2", ".", "F", "."],
    ]
    (link,) = grid.all("a")
    assert link.attributes["aria-label"] == "failed: precision bf16, world_size 2, seed 1"
    assert page.all("details", id=str(link.attributes["href"]).removeprefix("#"))


def test_gates_are_shown_and_filtered_by(make):
    """A failure says which gate refused it, and a box leaves the cells of one gate."""
    refused = ("agreement", "races", HOSTILE)
    cells = [entry("fail", n, gate=name) for n, name in enumerate(refused)]
    page = parse(make(*cells, entry("pass", 3)))
    facts = {tuple(cell.text for cell in row.children) for row in page.all("tr")}
    assert ("gate", "agreement") in facts
    (gates,) = [g for g in page.all("fieldset") if g.all("legend")[0].text == "gate"]
    assert [label.text for label in gates.all("label")][1:] == ["agreement", "races"]
    style = page.all("style")[0].text
    for box in gates.all("input"):
        shown = str(box.attributes["data-shows"])
        assert f":not(:has(#{box.attributes['id']}:checked)) td.cell.{shown}" in style
        (mark,) = [mark for mark in page.all("td") if shown in classes_of(mark)]
        assert mark.text == "F"
    assert "onerror" not in style


def test_every_link_leads_somewhere_and_no_id_is_there_twice(make):
    """Also where reasons are folded, cut off and shown again under another statement."""
    cells = [entry("fail" if n % 3 else "pass", n) for n in range(400)]
    text = make(*cells).read_text()
    anchors = re.findall(r'\bid="([^"]+)"', text)
    assert len(anchors) == len(set(anchors))
    assert {*re.findall(r'href="#([^"$]+)"', text)} <= {*anchors}


def test_many_failing_cells_are_cut_off(make):
    """At most 200 are listed, and the page says how many more there are."""
    page = parse(make(*(entry("fail", n) for n in range(250))))
    (cells,) = page.all("ul", **{"class": "cells"})
    assert len(cells.children) == 201
    assert cells.children[-1].text.startswith("and 50 more;")


def test_different_environments_of_the_sides(make):
    """What is not the same on both sides is told with the failure."""
    sides = {"candidate": {"torch": "2.13", "A": "1"}, "reference": {"torch": "2.12", "A": "1"}}
    page = parse(make(entry("fail", environment=sides)))
    (failure,) = page.all("details", **{"class": "failure"})
    assert "torch2.132.12" in failure.text
    assert "Ranks ran with 2 different sets of settings" in page.text


def test_a_session_that_was_cut_short(make):
    """The page says that cells are missing, before anything else."""
    page = parse(make(entry(), finished=False))
    (warning,) = page.all("p", **{"class": "warning"})
    assert warning.text.startswith("Not finished: 1 cell of 1 ran")


def test_a_report_of_an_older_release(make, tmp_path):
    """Cells without status and place are shown by their outcome."""
    make(entry("fail"))
    file = tmp_path / "report.json"
    report = json.loads(file.read_text())
    for name in ("status", "number", "line", "repeat", "spread", "histogram"):
        del report["cells"][0][name]
    file.write_text(json.dumps(report))
    assert parse(write_page(tmp_path)).all("h1")[0].text == "1 of 1 cell failed"


def test_hostile_names_are_inert(make):
    """Markup in any text of others is text, and what would turn or hide it is made visible."""
    axes = {"precision": HOSTILE, HOSTILE: HOSTILE}
    more = {"candidate": HOSTILE, "left_out": {HOSTILE: HOSTILE}, "details": (HOSTILE,)}
    sides = {"candidate": {HOSTILE: HOSTILE}, "reference": {HOSTILE: "1"}}
    found = entry("fail", nodeid=f"{HOSTILE}::t[{HOSTILE}]", axes=axes, environment=sides, **more)
    page = make(found | {"reason": HOSTILE, "repeat": HOSTILE})
    root = parse(page)
    assert not root.all("img")
    assert len(root.all("script")) == 1
    assert not [e for e in root.all("td") if any(name.startswith("on") for name in e.attributes)]
    assert "\\u202egnp.exe\\x1b[31m" in root.text
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", page.read_text("utf-8"))
    assert "{{7*7}}" in root.text


def test_nothing_but_its_own_style_and_script_is_allowed(make):
    """The policy names both by their hashes; there is no other, no attribute with either."""
    text = make(entry("fail")).read_text()
    page = parse(make(entry("fail")))
    (policy,) = (m.attributes["content"] for m in page.all("meta") if "http-equiv" in m.attributes)
    for name in ("style", "script"):
        (own,) = re.findall(f"<{name}>(.*?)</{name}>", text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in str(policy)
    assert not re.search(r'<[^>]+ (style|on\w+)="', text)
    assert not re.search(r'(src|href)="(?!#)', text.replace(f'href="{DOCS}/', 'href="#'))


def test_script_is_short():
    """It filters, searches and copies, and nothing else."""
    from pytest_precision.report.page.render import PAGE_FOLDER

    assert (PAGE_FOLDER / "filter.js").stat().st_size < 4096


@pytest.mark.parametrize("text", ["", "[]", '{"schema": 2}', '{"schema": 1, "cells": [{}]}'])
def test_what_is_no_report_is_refused(tmp_path, text):
    """With what is wrong, and no page."""
    (tmp_path / "report.json").write_text(text)
    with pytest.raises(ReportError, match="expected "):
        write_page(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_what_ranks_printed_is_folded(make):
    """Side by side and rank by rank, below the message; nothing where nothing was printed."""
    printed = [
        {"side": "candidate", "rank": 1, "lines": ["step 1: loss 2.25", HOSTILE]},
        {"side": "reference", "rank": 1, "lines": ["step 1: loss 2.5"]},
    ]
    page = parse(make(entry("fail", output=printed)))
    (output,) = page.all("details", **{"class": "output"})
    assert "open" not in output.attributes
    assert [label.text for label in output.all("p")] == ["candidate, rank 1", "reference, rank 1"]
    ours, theirs = output.all("pre")
    assert ours.text.startswith("step 1: loss 2.25\n</script>")
    assert theirs.text == "step 1: loss 2.5\n"
    assert not parse(make(entry("fail"))).all("details", **{"class": "output"})
