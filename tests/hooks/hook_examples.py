"""The examples in the docstrings of hookspecs."""

import inspect
import textwrap

from elastic_core.hooks import spec


def example_of(hook):
    """The source of the plugin that is the example of a hook."""
    return textwrap.dedent(inspect.getdoc(getattr(spec, hook)).partition("A whole plugin::\n")[2])
