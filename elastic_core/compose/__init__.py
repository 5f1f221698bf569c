"""The composition root, the only package that imports all others.

This package selects the components that a run uses, builds one agent's objects, and stops them in reverse order."""

from elastic_core.compose.agent import answering, composed, parts_for
from elastic_core.compose.plan import (
    Plan,
    origins_named,
    plan_of,
    selections,
    unknown_event_handler,
    without_missing,
)
from elastic_core.compose.policy import Entry, function_entry, script_entry

__all__ = [
    "Entry",
    "Plan",
    "answering",
    "composed",
    "function_entry",
    "origins_named",
    "parts_for",
    "plan_of",
    "script_entry",
    "selections",
    "unknown_event_handler",
    "without_missing",
]
