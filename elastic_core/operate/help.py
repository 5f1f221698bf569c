"""What `elastic explain --help` and `elastic plugins --help` print: commands that have but one flag of their own."""

from __future__ import annotations

from elastic_core.config import Spec
from elastic_core.config.usage import command_help
from elastic_core.errors import ExitCode
from elastic_core.parsing import parse_boolean

_JSON = Spec(
    "json",
    parse_boolean,
    False,
    "own",
    "write JSON; its fields are in docs/reference/json.md",
    torchrun=False,
    flag_only=True,
)

_EXPLAIN = """\
usage: elastic explain [--json] [flags of elastic run] [script]

Shows the configuration that elastic run would use with these flags, variables and this config file,
and where each value comes from. It starts nothing. elastic run --help has the flags of elastic run.
"""

_EXPLAIN_EXAMPLE = "elastic explain --nnodes 2:4 --rdzv-endpoint node0:29400 --rdzv-id job7 train.py"

_PLUGINS = """\
usage: elastic plugins [--json]

Lists what is installed, what it brings, and what failed to load and why.
"""


def explain_help() -> str:
    """What `elastic explain --help` prints."""
    codes = {
        ExitCode.SUCCESS: "nothing is wrong with it",
        ExitCode.BAD_CONFIGURATION: "something is; every problem is told",
    }
    return command_help(_EXPLAIN, (_JSON,), _EXPLAIN_EXAMPLE, codes)


def plugins_help() -> str:
    """What `elastic plugins --help` prints."""
    codes = {ExitCode.SUCCESS: "they are listed, also if some failed to load"}
    return command_help(_PLUGINS, (_JSON,), "elastic plugins", codes)
