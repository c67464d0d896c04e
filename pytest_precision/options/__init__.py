"""The plugin's options, read from the command line, environment, ini file or test marker."""

from pytest_precision.options.option import Option as Option
from pytest_precision.options.option_sources import add_options as add_options
from pytest_precision.options.option_sources import cells_are_asked_for as cells_are_asked_for
from pytest_precision.options.option_sources import read_options as read_options
from pytest_precision.options.option_sources import with_marker as with_marker
from pytest_precision.options.settings import SETTINGS as SETTINGS
from pytest_precision.options.settings import Settings as Settings
from pytest_precision.options.table import MARKER_OPTIONS as MARKER_OPTIONS
from pytest_precision.options.table import OPTIONS as OPTIONS
