"""The examples in the docstrings of hookspecs."""

import inspect
import textwrap

from elastic_core.hooks import spec


def example_of(hook):
    """The source of a hook's example."""
    return textwrap.dedent(inspect.getdoc(getattr(spec, hook)).partition("A complete plugin::\n")[2])
