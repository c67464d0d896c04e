"""Import on a rank what pytest imported to collect a test: its conftest.py files and its module.

What they set in other modules while they are imported then holds on ranks as it does in the test.
"""

from __future__ import annotations

from pytest_precision.errors import expected_but_got
from pytest_precision.ranks.code.import_path import ImportPath
from pytest_precision.ranks.code.loading import place_on_rank

_IMPORTED: set[tuple[ImportPath, ...]] = set()


def import_collected(modules: tuple[ImportPath, ...]) -> bool:
    """Import modules in the order in which pytest did, each time the first call in a process.

    Args:
        modules: conftest.py files, other plugins of the user and the test module.

    Returns:
        Whether this call has imported them.

    Raises:
        ImportError: one cannot be imported here; the message has its file.
    """
    if not modules or modules in _IMPORTED:
        return False
    for module in modules:
        if module.file is None or place_on_rank(module.file) is not None:
            _import(module)
    _IMPORTED.add(modules)
    return True


def _import(module: ImportPath) -> None:
    try:
        module.resolve()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also a skip of pytest, and `sys.exit`
        raise ImportError(
            expected_but_got(
                "conftest.py files and test modules that ranks can import as pytest did",
                f"{module.file}, which raised {type(error).__name__}: {error}",
                "move what needs pytest's own process into a fixture, or the layout and its "
                "workload into a folder whose tests do without it",
            ),
            name=getattr(error, "name", None),
        ) from error
