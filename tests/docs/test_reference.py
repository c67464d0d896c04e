"""Reference pages say what the code says."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from inspect import signature

import pytest
from documents import PAGES, ROOT, named

import pytest_precision
from pytest_precision import layouts
from pytest_precision.__main__ import main
from pytest_precision.engine.engine import STEP_PHASES
from pytest_precision.engine.kinds import KINDS
from pytest_precision.matrix.contract import PATHS
from pytest_precision.matrix.sequence import LOADS, OPERATIONS
from pytest_precision.options import OPTIONS, Option
from pytest_precision.parity.compare.calls import CALLS
from pytest_precision.parity.compare.signature import ERRORS
from pytest_precision.parity.culprit import CULPRIT_KINDS
from pytest_precision.parity.verdict import OUTCOMES
from pytest_precision.report.page.doc_links import (
    DOCS,
    ERRORS_WITH_A_ROW,
    KINDS_WITH_A_ROW,
    MEANING,
    WHERE_TO_LOOK,
)
from pytest_precision.report.status import STATUSES

REFERENCE = ROOT / "docs" / "reference"


def rows(page: str, heading: str) -> list[list[str]]:
    """Return the cells of the table of a page whose first row begins with a heading."""
    text = (REFERENCE / page).read_text().replace("\\|", "\0")
    table = text.partition(f"\n| {heading} |")[2].partition("\n\n")[0].strip("\n")
    assert table, f"{page} has no table {heading!r}"
    lines = table.split("\n")[2:]
    return [[part.strip().replace("\0", "|") for part in line.split("|")[1:-1]] for line in lines]


def first_names(page: str, heading: str) -> list[str]:
    """Return the names in backquotes in the first column of a table."""
    return [name for row in rows(page, heading) for name in re.findall(r"`([\w.]+)`", row[0])]


def usage(option: Option) -> str:
    """Return an option as the table shows it."""
    metavar = option.metavar.replace("...", "…")
    if option.instead:
        return f"`{option.key}`"
    return f"`{option.flag} {metavar}`" if metavar else f"`{option.flag}`"


def test_options() -> None:
    """The table has every option in the form that the command line takes, with its default."""
    table = {row[0]: row[2] for row in rows("options.md", "option")}
    assert set(table) == {usage(option) for option in OPTIONS}
    words = {
        "false": ("skipped", "a warning", "skipped cells are green", "not done"),
        "none": ("none", "all", "not done"),
        "0": ("not done",),
    }
    for option in OPTIONS:
        shown = table[usage(option)].strip("`")
        assert shown in (*words.get(option.default, ()), option.default), option.name


def test_options_of_the_marker() -> None:
    """Which options a marker may override."""
    text = (REFERENCE / "options.md").read_text()
    said = re.search(r"the marker takes (.+?)\.", text)
    assert said is not None
    assert {*re.findall(r"`(\w+)`", said[1])} == {o.name for o in OPTIONS if o.of_marker}


def options_of(capsys: pytest.CaptureFixture[str], *words: str) -> set[str]:
    """Return the options of a command, as its help has them."""
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    listed = re.findall(r"^  (?:-\w, )?(--[\w-]+)", capsys.readouterr().out, re.MULTILINE)
    return {*listed} - {"--help"}


def test_options_of_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """The page names every command and every option of one, and no other."""
    text = (REFERENCE / "commands.md").read_text()
    commands = first_names("commands.md", "command")
    modules = (ROOT / "pytest_precision" / "commands").glob("[a-z]*.py")
    assert {*commands} - {"import"} | {"against"} == {module.stem for module in modules}
    merging = options_of(capsys, "report", "merge") | options_of(capsys, "report", "html")
    known = merging.union(*(options_of(capsys, command) for command in commands))
    others = {"--lr", "--nproc-per-node", "--print-completion", "--help"}  # of no one command
    assert {*re.findall(r"(?<![\w-])--[a-z][\w-]*", text)} - others == known


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_options_that_are_named_exist(page) -> None:  # type: ignore[no-untyped-def]
    """An option that a page speaks of is one; `precision_matrix` is the marker, too."""
    known = {option.flag for option in OPTIONS if not option.instead}
    assert {*re.findall(r"--precision-[\w-]+", page.read_text())} <= known


def test_names() -> None:
    """Every public name is in a table of the API's page, and no other."""
    names = first_names("api.md", "name"), first_names("api.md", "exception")
    assert sorted(itertools.chain(*names)) == sorted(pytest_precision.__all__)


def test_exceptions() -> None:
    """Those that users may catch are in a table of their own, each with what it is for `except`."""
    table = {row[0].strip("`"): row[1].strip("`") for row in rows("api.md", "exception")}
    public = {name: getattr(pytest_precision, name) for name in pytest_precision.__all__}
    assert table == {
        name: kind.__base__.__name__
        for name, kind in public.items()
        if isinstance(kind, type) and issubclass(kind, Exception)
    }


@pytest.mark.parametrize(
    ("page", "heading", "known"),
    [
        ("kinds.md", "phase", STEP_PHASES),
        ("axes.md", "operation", OPERATIONS),
        ("verdicts.md", "outcome", OUTCOMES),
        ("verdicts.md", "path", PATHS),
        ("report.md", "mark", [status.mark for status in STATUSES.values()]),
        ("report.md", "kind of error", CULPRIT_KINDS),
        ("workloads.md", "workload", ("mlp", "gpt", "moe")),
        ("criteria.md", "criterion", CALLS),
    ],
)
def test_tables(page: str, heading: str, known) -> None:  # type: ignore[no-untyped-def]
    """A table has what there is, in its order."""
    names = [re.findall(r"`(\w+|[^\w`])", row[0])[0] for row in rows(page, heading)]
    assert names == [*known]


@pytest.mark.parametrize(
    ("sentence", "known"),
    [
        (r"\. (.+?) take a count", [row.name for row in OPERATIONS.values() if row.counted]),
        (r"\n\n(.+?) go on with 4 ranks", [f"{name}@4" for name in OPERATIONS if name in LOADS]),
        (r"are drawn except (`\w+`)", [row.name for row in OPERATIONS.values() if row.asked_for]),
    ],
)
def test_sentences_on_operations(sentence: str, known: list[str]) -> None:
    """What the page says of some operations is what their rows say."""
    said = re.search(sentence, (REFERENCE / "axes.md").read_text())
    assert said is not None
    assert re.findall(r"`([^`]+)`", said[1]) == known


def test_a_phase_shows_every_kind_that_a_step_makes() -> None:
    """What outlives a step is shown after all that may change it, and is not listed."""
    named = {name for row in rows("kinds.md", "phase") for name in re.findall(r"`(\w+)`", row[2])}
    assert named - {*KINDS} == set()
    assert {name for name, kind in KINDS.items() if kind.lasts != "state"} <= named


def test_all_criteria_but_one_take_check_dtype() -> None:
    """As the sentence below their table has it."""
    without = {
        name for name, call in CALLS.items() if "check_dtype" not in signature(call).parameters
    }
    assert (
        "All criteria but `unchecked` take the argument `check_dtype=False`"
        in (REFERENCE / "criteria.md").read_text()
    )
    assert without == {"unchecked"}


def test_the_page_leads_to_a_row_of_each_kind_of_error() -> None:
    """The address of it is in pages that leave the machine, so that the row keeps its name."""
    marked = [row[0] for row in rows("report.md", "kind of error")]
    assert [re.findall(r'id="kind-(\w+)"', mark) for mark in marked] == [
        [kind] for kind in CULPRIT_KINDS
    ]
    assert MEANING.endswith("/docs/reference/report.md")


def test_the_page_leads_to_where_to_look() -> None:
    """Each kind and each error that the page links has a row, and no row is without a link."""
    text = (ROOT / "docs" / WHERE_TO_LOOK.removeprefix(f"{DOCS}/")).read_text()
    for prefix, known in (("first", KINDS_WITH_A_ROW), ("error", ERRORS_WITH_A_ROW)):
        anchors = re.findall(rf'<a id="{prefix}-([\w-]+)"></a>`([\w ]+)`', text)
        assert {name: anchor for anchor, name in anchors} == {
            name: name.replace(" ", "-") for name in known
        }
    assert {*ERRORS_WITH_A_ROW} >= {*ERRORS}


def test_rules_of_the_audit() -> None:
    """Every rule has a row, with its severity."""
    files = (ROOT / "pytest_precision" / "auditing" / "checks").glob("*.py")
    rule = re.compile(r'AuditFinding\(\s*"([\w-]+)",\s*"(\w+)"')
    known = {found for file in files for found in rule.findall(file.read_text())}
    table = rows("../how-to/audit.md", "rule")
    assert {(row[0].strip("`"), row[1]) for row in table} == known


def test_layouts() -> None:
    """Every layout has a row for what it is, and stands in one for the cells that it takes."""
    helpers = {"compute_in", "fresh_ranks", "may_leave", "pure", "resident", "supports"}
    helpers |= {"uses_transformer_engine", "with_environment"}
    known = {*layouts.__all__} - helpers
    assert {*first_names("layouts.md", "layout | parameters")} >= known
    assert {*first_names("layouts.md", "layout | precision: primary weights")} == known


def messages() -> Iterator[str]:
    """Yield every text of the package, with `…` for what is filled in."""
    for file in (ROOT / "pytest_precision").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "…"
                    for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


def test_messages_of_troubleshooting() -> None:
    """What the first column quotes is a text of the package, so that a search finds the row."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    tables = re.findall(r"^\| message \|.*?\n\n", page, re.MULTILINE | re.DOTALL)
    quoted = [m for table in tables for m in re.findall(r"^\| `([^`]+)` \|", table, re.MULTILINE)]
    assert len(quoted) > 15
    known = "\n".join(messages())
    for message in quoted:
        for part in re.split(r"…|\b[A-Z]+\b|^expected | but got ", message):
            assert part.strip(" ,;") in known, f"{message!r}: no {part!r}"
