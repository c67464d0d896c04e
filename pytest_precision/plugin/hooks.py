"""The plugin: hooks and fixtures that pytest calls; each is a few lines and delegates.

Nothing heavy is imported here, and never torch: pytest imports this module at every start of every
project that has the package installed, even if it runs no matrix. Modules that only a running
matrix needs are imported in the hook that needs them.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Any

import pytest

from pytest_precision._interrupts import WholeTorch
from pytest_precision.options import OPTIONS, SETTINGS, add_options, read_options
from pytest_precision.plugin.collection import Collection, cell_of_test
from pytest_precision.plugin.patched import note_what_is_patched
from pytest_precision.plugin.registration import add_hooks, refusals_of_plugins, register_package
from pytest_precision.plugin.supported import refuse_old_pytest
from pytest_precision.ranks.launch.launch import Launch

if TYPE_CHECKING:
    from collections.abc import Generator

    from pytest_precision.check.parity import Parity
    from pytest_precision.matrix.cell import Cell
    from pytest_precision.plugin.fixtures import Ranks

COLLECTION = pytest.StashKey[Collection]()

MARKERS = (
    "precision_matrix(axis=[value, ...], *, environment, "
    f"{', '.join(option.name for option in OPTIONS if option.of_marker)}): "
    "run the test in every cell of the axes; see --precision-matrix",
    "world_size(n): number of ranks of the fixture `ranks`",
    "precision_regression(number, system): the defect that the test guards against",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the plugin's options, and refuse a pytest that is too old for its hooks."""
    refuse_old_pytest(pytest.__version__)
    add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Declare the hooks by which plugins bring judgements and reporters."""
    add_hooks(pluginmanager)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, object, object]:
    """Note what is patched from now on where cells run, and tell a launch of a wrong conftest."""
    note_what_is_patched(early_config)
    return (yield from _telling_the_launch())


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main() -> Generator[None, object, object]:
    """Tell the other processes of torchrun or srun of an error that ends pytest."""
    return (yield from _telling_the_launch())


def _telling_the_launch() -> Generator[None, object, object]:
    try:
        return (yield)
    except Exception as error:
        with suppress(pytest.UsageError):  # it may be the error itself
            launch = Launch.of(os.environ)
            if launch is not None:
                from pytest_precision.plugin import launched

                launched.refuse_rank(launch, launched.reason(error))
        raise


def pytest_configure(config: pytest.Config) -> None:
    """Read the options, and register the further hooks that this process needs."""
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    settings = config.stash[SETTINGS] = read_options(config)
    if settings.strict_isolation:
        if not config.pluginmanager.hasplugin("warnings"):
            raise pytest.UsageError(
                "expected pytest's warnings plugin with precision_strict_isolation but got "
                "-p no:warnings; drop one of them"
            )
        config.addinivalue_line("filterwarnings", "error::pytest_precision.PrecisionLeakWarning")
    config.stash[COLLECTION] = Collection(settings)
    if settings.enabled:
        imports = ExitStack()
        imports.enter_context(WholeTorch().watching())
        config.add_cleanup(imports.close)
    register_package(config)
    if hasattr(config, "workerinput"):
        return
    launch = Launch.of(os.environ)
    if launch is not None:
        from pytest_precision.plugin import launched

        role = launched.RankHolder if launch.rank else launched.LaunchController
        config.pluginmanager.register(role(launch, config.stash[COLLECTION]), "precision-launch")
    if launch is None or launch.rank == 0:
        _report(config)


def _report(config: pytest.Config) -> None:
    settings = config.stash[SETTINGS]
    if settings.enabled:
        config.pluginmanager.register(Controller(config), "precision-report")
    if settings.require:
        from pytest_precision.plugin.requirement import Requirement

        config.pluginmanager.register(Requirement(enabled=settings.enabled), "precision-require")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test with the cells (combinations of axis values) of its marker."""
    metafunc.config.stash[COLLECTION].generate(metafunc)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the parametrized tests that options such as --precision-select exclude."""
    config.stash[COLLECTION].choose(config, items)


# It runs first, so that the counts exist when the terminal reporter asks for them.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """Count the matrix cells, and end the session if a marker or option is wrong."""
    collection = session.config.stash[COLLECTION]
    if hasattr(session.config, "workerinput") and Launch.of(os.environ) is not None:
        from pytest_precision.plugin import launched

        collection.errors += launched.launch_refusal(session.items, collection)
    if collection.settings.enabled and collection.plans:
        collection.errors += refusals_of_plugins(session.config)
    collection.finish(session)
    if collection.settings.enabled and collection.planned and not session.config.option.collectonly:
        from pytest_precision.plugin import fixtures

        fixtures.take_in_definitions(session.config)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Save the functions and classes of newly imported modules, before fixtures can patch them."""
    if item.config.stash[COLLECTION].cell_to_run(item) is not None:
        from pytest_precision.plugin import fixtures

        fixtures.take_in_definitions(item.config)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Return a line on how many matrix cells will run, to print above the results."""
    return config.stash[COLLECTION].header(config.get_verbosity())


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Read the matrix cell counts and errors of a finished xdist worker."""
    # A worker that crashed has no output.
    node.config.stash[COLLECTION].receive(getattr(node, "workeroutput", {}))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Show a long cell's progress; fail one with the fixture `parity` that made no check."""
    if pyfuncitem.config.stash[COLLECTION].cell_to_run(pyfuncitem) is None:
        return (yield)
    from pytest_precision.plugin import fixtures
    from pytest_precision.plugin.long_cells import progress_of

    with progress_of(pyfuncitem):
        result = yield
    fixtures.require_check(pyfuncitem)
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
    call: pytest.CallInfo[None],
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach axis values and check results to the reports of a matrix test."""
    report = yield
    collection = item.config.stash[COLLECTION]
    if (cell := collection.cell_to_run(item)) is not None:
        from pytest_precision.plugin import fixtures

        fixtures.attach_verdicts(report, item, cell, collection.counts.cells, call.excinfo)
        fixtures.short_failure(report, call.excinfo)
    return report


class Controller:
    """The hooks of the process that reports; xdist workers send their reports to it."""

    def __init__(self, config: pytest.Config) -> None:
        from pytest_precision.report.session import SessionReport

        self.collection = config.stash[COLLECTION]
        self.report = SessionReport.of(config, config.stash[SETTINGS])

    # It runs first, since an xdist controller collects nothing and stops this hook.
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """Start the session's report before tests are collected."""
        self.report.start()

    def pytest_collection_finish(self) -> None:
        """Record in the report how many matrix cells are to run."""
        self.report.plan(self.collection.planned)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """Record in the report that all tests ran, unless an exception ended the loop."""
        result = yield
        self.report.plan(self.collection.planned)
        self.report.end()
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a test's result to the session's report."""
        self.report.add(report)

    def pytest_sessionfinish(self) -> None:
        """Write report.json for the last time."""
        self.report.finish()

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the report's section of pytest's terminal summary."""
        self.report.summary(terminalreporter)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Write how many matrix cells xdist workers collected, or that no cell was left to run."""
    for line in config.stash[COLLECTION].summary(config.get_verbosity()):
        terminalreporter.write_line(line)


@pytest.fixture
def precision_cell(request: pytest.FixtureRequest) -> Generator[Cell, None, None]:
    """Give the test its cell, a combination of axis values, and record which axes it reads."""
    from pytest_precision.plugin.fixtures import noted

    with noted(request.node):
        yield cell_of_test(request)


@pytest.fixture
def cell(precision_cell: Cell) -> Cell:
    """Give the test its cell; a project with a fixture of this name takes `precision_cell`."""
    return precision_cell


@pytest.fixture
def parity(request: pytest.FixtureRequest, precision_cell: Cell) -> Parity:
    """Give the test an object that trains a candidate and a reference and compares them."""
    from pytest_precision.plugin import fixtures

    settings = request.config.stash[COLLECTION].settings_of(request.node)
    return fixtures.parity_fixture(request, precision_cell, settings)


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Ranks:
    """Run functions on as many ranks as the test's marker `world_size` says."""
    from pytest_precision.plugin import fixtures

    settings = request.config.stash[COLLECTION].settings_of(request.node)
    return fixtures.ranks_fixture(request, settings)
