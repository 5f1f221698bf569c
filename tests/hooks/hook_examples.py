"""The examples in the docstrings of hookspecs, and plugins that tests have installed."""

import inspect
import textwrap

from elastic_core.hooks import spec
from elastic_core.hooks.manager import PluginManager


def example_of(hook):
    """The source of a hook's example."""
    return textwrap.dedent(inspect.getdoc(getattr(spec, hook)).partition("A complete plugin::\n")[2])


def load(*points, **environ):
    """The plugins of these lists of entry points, with these environment variables."""
    return PluginManager.load(environ, entry_points=[point for some in points for point in some])
