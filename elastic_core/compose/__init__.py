"""The only room that knows all others: picks records, builds the objects of one agent, ends them in reverse order."""

from elastic_core.compose.agent import Parts, answering, composed, parts_for
from elastic_core.compose.chosen import (
    check_available,
    explained_starter,
    origins_named,
    problems_of,
    unused_options,
    without_missing,
)
from elastic_core.compose.policy import Entry, function_entry, script_entry, why_unbound

__all__ = [
    "Entry",
    "Parts",
    "answering",
    "check_available",
    "composed",
    "function_entry",
    "explained_starter",
    "origins_named",
    "parts_for",
    "problems_of",
    "script_entry",
    "unused_options",
    "why_unbound",
    "without_missing",
]
