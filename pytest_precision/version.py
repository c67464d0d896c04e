"""Version: the release of this package, as its metadata have it."""

from importlib.metadata import version

__version__ = version("pytest-precision")
