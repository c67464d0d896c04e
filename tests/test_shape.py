"""Shape of the package: one word for one thing, and functions that fit a screen."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

import pytest_precision

PACKAGE = Path(pytest_precision.__file__).parent

LONGEST = 40
"""Lines of a function's body, without its docstring."""


@cache
def tree(file: Path) -> ast.Module:
    """Return a module as it is parsed, once for all of these tests."""
    return ast.parse(file.read_text())


@cache
def nodes() -> list[tuple[str, ast.AST]]:
    """Return every node of every module, with the module's path in the package."""
    return [
        (path, node)
        for file in sorted(PACKAGE.rglob("*.py"))
        for path in (str(file.relative_to(PACKAGE)),)
        for node in ast.walk(tree(file))
    ]


def test_names_of_public_classes_are_unique() -> None:
    """No two modules have a public class of one name, so that a name in a traceback says which."""
    homes: dict[str, list[str]] = defaultdict(list)
    for file, node in nodes():
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            homes[node.name].append(file)
    assert len(homes) > 100
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


FILES_THAT_SHARE_A_NAME, NAMES_WITH_SEVERAL_HOMES = 0, 5
"""How many of them there may be; a traceback or a grep should say which one is meant."""


def with_own_names() -> list[Path]:
    """Return the modules of the package but for those of two folders.

    Those of `commands` are named as the commands are, those of `probes` as the judgements, and all
    of these register alike.
    """
    return [
        file
        for file in sorted(PACKAGE.rglob("*.py"))
        if file.relative_to(PACKAGE).parts[0] not in ("commands", "probes")
    ]


def test_few_files_share_a_name() -> None:
    """So that a name alone says which file it is."""
    homes: dict[str, list[str]] = defaultdict(list)
    for file in with_own_names():
        if file.name != "__init__.py":
            homes[file.name].append(str(file.relative_to(PACKAGE)))
    assert len(homes) > 300
    shared = {name: files for name, files in homes.items() if len(files) > 1}
    assert len(shared) <= FILES_THAT_SHARE_A_NAME, shared


def test_few_names_have_several_homes() -> None:
    """So that a public function, class or constant is found by its name alone, but for hooks."""
    homes: dict[str, set[str]] = defaultdict(set)
    for file in with_own_names():
        for node in tree(file).body:
            for name in defined(node):
                if not name.startswith(("_", "pytest_")):
                    homes[name].add(str(file.relative_to(PACKAGE)))
    assert len(homes) > 1000
    shared = {name: files for name, files in homes.items() if len(files) > 1}
    assert len(shared) <= NAMES_WITH_SEVERAL_HOMES, shared


def defined(node: ast.stmt) -> list[str]:
    """Return the names that a statement at the top of a module defines; imports define none."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [target.id for target in targets if isinstance(target, ast.Name)]
    return []


JUDGES = (
    "check/ruled_check.py",
    "recorders/engine_recorder.py",
    "probes/gradients/gradient_probe.py",
    "recorders/layout_job.py",
    "probes/declared_rule/update_watcher.py",
    "trace/recording.py",
)
"""The modules that record and judge a cell; what they import, each green cell imports."""

ONLY_RED = (
    "check/disagreement.py",
    "probes/lines/line_named.py",
    "parity/compare/dense.py",
    "parity/compare/noise.py",
    "parity/explain/diagnosis.py",
    "parity/explain/locate.py",
    "parity/self_checks/tolerance.py",
    "probes/gradients/perturbed.py",
    "probes/declared_rule/oracle/fitted_rules.py",
    "probes/races/perturb/rounding_noise.py",
    "recorders/skipped_step.py",
    "trace/whole_recording.py",
)
"""What explains a red cell, or belongs to a criterion, an option or an operation of few cells."""


def imported_with(files: Iterable[str]) -> set[str]:
    """Return the modules of the package that are imported with some, by way of any number."""
    due = [*files]
    found = {*due}
    while due:
        for node in tree(PACKAGE / due.pop()).body:
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
                paths = {f"{n.partition('.')[2].replace('.', '/')}.py" for n in names}
                new = {path for path in paths - found if (PACKAGE / path).exists()}
                found |= new
                due += new
    return found


def test_a_green_cell_does_not_import_what_only_red_ones_need() -> None:
    """So that its way is short to read, and a session that passes imports less."""
    assert all((PACKAGE / file).exists() for file in (*JUDGES, *ONLY_RED))
    imported = imported_with(JUDGES)
    assert len(imported) > 100
    assert imported.isdisjoint(ONLY_RED), imported.intersection(ONLY_RED)


def test_functions_are_short() -> None:
    """A longer one has several thoughts, each of which deserves a name."""
    lengths: dict[str, int] = {}
    for file, node in nodes():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            if body:
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1
                lengths[f"{file}:{node.lineno} {node.name}"] = lines
    assert len(lengths) > 1000
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST} == {}


def test_private_names_of_torch_have_one_home() -> None:
    """There each has its reason, and a new release of torch is one file to look at."""
    private = re.compile(r"\btorch(\.\w+)*\._[a-z]|\b_(pytree|execution_engine|version|schema)\b")
    found = [
        f"{file}: {ast.unparse(node)}"
        for file, node in nodes()
        if isinstance(node, (ast.Attribute, ast.ImportFrom, ast.Import))
        and private.search(ast.unparse(node).replace(" import ", "."))
        and not file.startswith("_torch/")
    ]
    assert found == []


def test_arithmetic_names_its_dtype() -> None:
    """The default is the user's, who may have set bf16 where these make or quantize weights."""
    made = {f"torch.{name}" for name in ("empty", "ones", "rand", "randn", "zeros")}
    calls = [
        (file, node)
        for file, node in nodes()
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in made
        and file.partition("/")[0] in ("formats", "layouts", "modules", "optim", "te")
    ]
    assert len(calls) > 30
    assert [
        f"{file}:{node.lineno} {ast.unparse(node)}"
        for file, node in calls
        if "dtype" not in {keyword.arg for keyword in node.keywords}
    ] == []


def test_modules_that_tests_share_have_names_of_their_own(pytestconfig: pytest.Config) -> None:
    """Of two with one name in `pythonpath`, all tests would import the first."""
    homes: dict[str, list[str]] = defaultdict(list)
    for folder in pytestconfig.getini("pythonpath"):
        for file in Path(folder).glob("*.py"):
            if not file.name.startswith(("test_", "conftest")):
                homes[file.name].append(str(file))
    assert len(homes) > 10
    assert {name: files for name, files in homes.items() if len(files) > 1} == {}


def test_each_planted_defect_has_one_home(pytestconfig: pytest.Config) -> None:
    """One defect with two classes is repaired in one of them, and proves less in the other."""
    root = pytestconfig.rootpath
    files = [
        *(root / "fixtures" / "defects").glob("*.py"),
        *(root / "tests").glob("*/planted*.py"),
        *(root / "tests" / "layouts" / "both_sides").glob("*.py"),
        root / "tests" / "check" / "contradictions.py",
        root / "tests" / "check" / "wrong_gradients.py",
        root / "tests" / "check" / "wrong_rules.py",
        root / "tests" / "workloads" / "workload_violators.py",
    ]
    classes = [
        node.name for file in files for node in tree(file).body if isinstance(node, ast.ClassDef)
    ]
    assert len(classes) > 100
    assert [name for name in {*classes} if classes.count(name) > 1] == []


MODES = {"open": 1, "fdopen": 1, ".open": 0, "NamedTemporaryFile": 0, "TemporaryFile": 0}
"""What opens a file, and which of its arguments is the mode."""


def opens_in_the_locales_encoding(call: ast.Call) -> bool:
    """Return whether a call opens a text, or a pipe as one, and does not say its encoding."""
    function = ast.unparse(call.func)
    name = function.rpartition(".")[2]
    said = {keyword.arg: keyword.value for keyword in call.keywords}
    if "encoding" in said or function == "os.open":
        return False
    if function.startswith("subprocess."):
        return bool({"text", "universal_newlines"} & {*said})
    if name in ("read_text", "write_text"):
        return True
    name = ".open" if function.endswith(".open") else name
    if name not in MODES:
        return False
    given = call.args[MODES[name] :][:1] or [said.get("mode", ast.Constant("r"))]
    # A method that is given something else than a mode opens no file.
    return isinstance(given[0], ast.Constant) and "b" not in str(given[0].value)


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("open(path)", True),
        ("open('block')", True),
        ("path.open()", True),
        ("path.open('w')", True),
        ("path.read_text()", True),
        ("path.write_text(text)", True),
        ("os.fdopen(1, 'w')", True),
        ("subprocess.run(words, text=True)", True),
        ("open(path, 'rb')", False),
        ("path.open('xb')", False),
        ("trace.open(reader)", False),
        ("path.read_text(encoding='utf-8')", False),
        ("subprocess.run(words, encoding='utf-8')", False),
    ],
)
def test_an_open_without_encoding_is_found(call: str, found: bool) -> None:
    """Whatever opens a text: a function, a method of a path, or a process with pipes."""
    expression = ast.parse(call, mode="eval").body
    assert isinstance(expression, ast.Call)
    assert opens_in_the_locales_encoding(expression) is found


def test_every_text_says_its_encoding() -> None:
    """A file of ours is UTF-8 wherever it is written and read, also in a locale without it."""
    calls = [(file, node) for file, node in nodes() if isinstance(node, ast.Call)]
    named = [node for _, node in calls if "encoding" in {key.arg for key in node.keywords}]
    assert len(named) > 20
    assert [
        f"{file}:{node.lineno} {ast.unparse(node)}"
        for file, node in calls
        if opens_in_the_locales_encoding(node)
    ] == []
