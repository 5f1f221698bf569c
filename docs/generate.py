"""Writes the reference pages that are generated from the code: `python docs/generate.py`. A test checks that they are
current."""

from __future__ import annotations

import inspect
import runpy
import sys
from pathlib import Path

from elastic_core.config import SPECS
from elastic_core.config.explain import as_word
from elastic_core.config.resolve import READ
from elastic_core.config.spec import GROUPS
from elastic_core.errors import ExitCode
from elastic_core.hooks import spec as hookspecs
from elastic_core.hooks.manager import HOOKS

_NOTE = "<!-- Written by docs/generate.py from the code; edit the code. -->\n"


def settings() -> str:
    """Return the page of settings: each one's flag, default, meaning, variables and config file keys."""
    parts = [
        "# Settings\n",
        _NOTE,
        "If several sources set a value, the first of these wins: flag, variables in the order shown,",
        "[config file](#config-file), [scheduler](#scheduler), default. `LOGLEVEL` ranks below the config file.\n",
    ]
    for group in GROUPS:
        parts += [f"## {group}\n", "| flag | default | meaning | variables |", "|---|---|---|---|"]
        parts += [_setting_row(name) for name, spec in SPECS.items() if spec.group == group]
        parts.append("")
    return "\n".join([*parts, _CONFIG_FILE, *_scheduler()])


_CONFIG_FILE = """\
## config file

The config file is the one given with `--config`, or else the nearest `elastic.toml` or `pyproject.toml` (with a table
`[tool.elastic]`) in the current folder or a parent. A key is a flag without its leading dashes; dashes and underscores
are equivalent. Values may be TOML strings, numbers, booleans, lists and tables. For the table `[rendezvous]`, see
[Configuration](../guides/configuration.md).

```toml
backend = "c10d"
endpoint = "node0:29400"
nproc-per-node = 8
max-restarts = 3
signals-to-handle = ["SIGTERM", "SIGINT"]

[rdzv-conf]
join_timeout = 900
```
"""


def _scheduler() -> list[str]:
    rows = [f"| `{SPECS[name].flag}` | {', '.join(f'`{each}`' for each in names)} |" for name, names in READ.items()]
    about = (
        "The variables come from [Slurm](../guides/slurm.md), in the tasks of a multi-node step, and from",
        "[Kubernetes](../guides/kubernetes.md), in the pods of a multi-node Indexed Job.\n",
    )
    return ["## scheduler\n", *about, "| flag | variables |", "|---|---|", *rows, ""]


def _setting_row(name: str) -> str:
    spec = SPECS[name]
    flags = ", ".join(f"`{flag}`" for flag in (spec.short, f"{spec.flag} {spec.metavar}".strip()) if flag)
    default = f"{'unset' if spec.default == '' else as_word(spec.default)} {spec.unit}".strip()
    keys = f" Also {', '.join(f'`{alias}`' for alias in spec.aliases)} in a config file." if spec.aliases else ""
    variables = ", ".join(f"`{variable}`" for variable in spec.variables())
    cells = (flags, f"`{default}`", f"{spec.help}.{keys}", variables)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_START_AGAIN = {
    ExitCode.SUCCESS: "no",
    ExitCode.WORKER_FAILED: "no: the job has used all its restarts, or a restart would not help",
    ExitCode.BAD_CONFIGURATION: "no",
    ExitCode.RENDEZVOUS_TIMEOUT: "yes",
    ExitCode.STORE_UNREACHABLE: "yes",
    ExitCode.CLOSED_BY_ANOTHER_NODE: "no: the job is over, and its id cannot be used again",
    ExitCode.WORKER_WOULD_NOT_DIE: "on another machine",
    ExitCode.RENDEZVOUS_FAILED: "once the cause is removed",
    ExitCode.NOT_FOUND: "-",
    ExitCode.DRAINED: "no, unless the node should rejoin",
    ExitCode.PREEMPTED: "yes, on another machine or when the job is requeued",
    ExitCode.INTERNAL_ERROR: "no",
}


def exit_codes() -> str:
    """Return the page of the exit codes of `elastic run`."""
    rows = [f"| {it.value} | `{it.name}` | {it.meaning} | {_START_AGAIN[it]} |" for it in ExitCode]
    signal_row = "| 128 + n | - | signal n ended the agent; its workers were stopped | yes, unless you stopped it |"
    advice = (
        "The last column is for supervisors, such as systemd (`RestartPreventExitStatus`) or "
        "[Kubernetes](../guides/kubernetes.md#the-manifest-explained) (`podFailurePolicy`).\n"
    )
    head = ["| code | name | meaning | start the agent again? |", "|---|---|---|---|"]
    return "\n".join(["# Exit codes\n", _NOTE, advice, *head, *rows, signal_row, ""])


def hooks() -> str:
    """Return the page of hooks, in the order in which a launch calls them."""
    parts = [
        "# Hooks\n",
        _NOTE,
        "All hooks, in the order in which a launch calls them. See [Writing a plugin](../extend/plugins.md).\n",
    ]
    for name in HOOKS:
        function = getattr(hookspecs, name)
        doc = inspect.getdoc(function) or ""
        text, _, example = doc.partition("A complete plugin::")
        arguments = ", ".join(inspect.signature(function).parameters)
        parts += [f"## `{name}({arguments})`\n", text.strip(), ""]
        if example:
            parts += ["A complete plugin:\n", "```python", inspect.cleandoc("\n" + example), "```", ""]
    return "\n".join(parts)


def _drawn(script: str) -> str:
    """Return the page that another script in this folder generates."""
    page: str = runpy.run_path(str(Path(__file__).with_name(script)))["page"](_NOTE)
    return page


PAGES = {
    "settings.md": settings,
    "exit-codes.md": exit_codes,
    "hooks.md": hooks,
    "states.md": lambda: _drawn("round_states.py"),
    "states.svg": lambda: runpy.run_path(str(Path(__file__).with_name("round_states.py")))["picture"](),
    "etcd-legacy.md": lambda: _drawn("etcd_legacy.py"),
    "environment.md": lambda: _drawn("environment.py"),
    "commands.md": lambda: _drawn("commands.py"),
}


def main(folder: Path) -> None:
    """Write all pages into `folder`."""
    for name, page in PAGES.items():
        (folder / name).write_text(page())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "reference")
