"""The `elastic` command line. Runs the subcommand, and turns errors into messages and exit codes.

Each subcommand imports only the modules that it needs, so `elastic --version` and messages about invalid flags appear
immediately.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import signal
import sys
import threading
import traceback
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from elastic_core.errors import ConfigurationError, ElasticError, ExitCode, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elastic_core.compose.plan import Plan
    from elastic_core.config import Reading, Sources
    from elastic_core.hooks.discovery import Source
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.hooks.records import CommandRecord, Option
    from elastic_core.observers import History

_PATIENCE = 5.0  # how many seconds a message waits for a stalled reader of stderr
_USAGE = """\
usage: elastic COMMAND [...]

{commands}

  --version  print the version
  --help     print this help; elastic COMMAND --help describes a command
"""


def entry_point(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the console script `elastic`, and exit. `argv` defaults to this process's arguments."""
    argv = sys.argv[1:] if argv is None else argv
    _open_standard_streams()
    code = main(argv)
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signal.getsignal(signum) is not signal.SIG_IGN:  # a signal must not change the code any more
            signal.signal(signum, lambda *_: _leave_at_once(code))
    if code != ExitCode.WORKER_WOULD_NOT_DIE and not _left_a_call_behind(argv):
        threading._shutdown()  # type: ignore[attr-defined]  # as Python does
        atexit._run_exitfuncs()
    _leave_at_once(code)


def main(argv: Sequence[str]) -> int:
    """Run one command, print any errors, and return the exit code."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # unblock signals that the caller blocked, here and in the workers
    name = argv[0] if argv else "--help"
    command = _COMMANDS.get(name) or functools.partial(_command, name)
    try:
        return command(argv[1:]) or ExitCode.SUCCESS
    except _HelpPrinted:
        return ExitCode.SUCCESS
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - Python would exit with 1, the code of failed workers
        return _explain_failure(error, command=name)


class _HelpPrinted(SystemExit):
    """Raised after the requested help has been printed."""


def run(argv: Sequence[str]) -> int:
    """Run `elastic run`."""
    manager, reading = read_like_run(argv)
    from elastic_core.observers import History

    history = History()
    error = run_job(reading, manager, history)
    return _explain_failure(error, reading.settings.rdzv_id or "", history=history) if error else ExitCode.SUCCESS


def run_job(reading: Reading, manager: PluginManager, history: History) -> BaseException | None:
    """Configure the log, run the job, and write its result file. Returns the error that ended the job, if any.

    Raises ConfigurationError before the job starts if the result file is not writable. If writing the file fails after
    the job, the error is only printed."""
    settings = reading.settings
    configure_log(reading, manager)
    path = settings.result_file
    if path is None:
        return _error_of(reading, manager, history)
    from elastic_core import report

    report.check_writable(path)
    error = _error_of(reading, manager, history)
    code = report.exit_code_of(error) if error else ExitCode.SUCCESS
    try:
        report.write_result(path, report.outcome(settings.rdzv_id or "", code, error, history))
    except Exception as failed:  # noqa: BLE001 - keep the job's exit code
        why = (isinstance(failed, OSError) and failed.strerror) or f"{type(failed).__name__}: {failed}"
        _complain(f"elastic: the job has ended, but its outcome could not be written to {path}: {why}")
    return error


def version(argv: Sequence[str]) -> None:
    """Run `elastic --version`."""
    from importlib.metadata import version as version_of

    show(f"elastic-core {version_of('elastic-core')}")


def usage(argv: Sequence[str]) -> None:
    """Run `elastic --help`, which includes the plugins' commands."""
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.hooks.records import COMMANDS, CommandRecord

    records = [item.record for item in PluginManager.load(os.environ).records(CommandRecord)]
    listed = [*COMMANDS.items(), *((record.name, record.summary) for record in records)]
    wide = max(len(name) for name, _ in listed)
    show(_USAGE.format(commands="\n".join(f"  {name:<{wide}}  {summary}" for name, summary in listed)))


def _command(name: str, argv: Sequence[str]) -> int | None:
    """Run a built-in command or a plugin's command."""
    from elastic_core import config
    from elastic_core.config.reading import BEFORE_PLUGINS
    from elastic_core.config.sources import RUN
    from elastic_core.hooks.calls import Contexts
    from elastic_core.hooks.discovery import CORE, Source, own_version
    from elastic_core.log import show_unless_configured
    from elastic_core.operate.commands import BUILT_IN

    record, source = BUILT_IN.get(name), Source(CORE, "builtin", own_version())
    added: Sequence[Option] = ()
    words = RUN if record and record.like_run else f"elastic {name}"
    sources = config.Sources(argv, os.environ, current_folder(), words)
    allowed = sources.allowed_plugins(config.command_specs(record) if record else BEFORE_PLUGINS)
    manager = _load_plugins(sources, allowed, name)
    if record is None:
        record, source = _provided(name, manager)
        added = [option for option in manager.added_options() if option in manager.added_by(source)]
    if record.options is None:
        show_unless_configured()
        return record.factory(Contexts(manager).of(source), argv)
    if record.like_run:
        more = {} if name in BUILT_IN else {"new_run_id": lambda: name}
        manager, reading = read_like_run(argv, record, (sources, allowed, manager), **more)
    else:
        reading = _read_command(record, sources, manager, added)
        _expect_guessed(allowed, reading.settings.plugins if record.settings is not None else allowed)
    if record.settings is not None:
        configure_log(reading, manager)
    plan = plan_for(reading, manager)
    own = {option.name: reading.own[option.name.replace("-", "_")] for option in record.options}
    context = replace(plan.contexts.of(source, own), plan=plan)
    if not record.like_run:
        shown = {name: getattr(reading.settings, name) for name in record.settings or ()}
        context = replace(context, settings=MappingProxyType(shown))
    return record.factory(context, reading.words)


def _read_command(record: CommandRecord, sources: Sources, manager: PluginManager, added: Sequence[Option]) -> Reading:
    """Read the command line of a command that is not `like_run`. Raises _HelpPrinted if it asks for help."""
    from elastic_core import config

    if sources.line(config.command_specs(record, added)).help:
        from elastic_core.config.explain import command_help

        show(command_help(record, added))
        raise _HelpPrinted
    reading = config.read_command(record, sources, manager.added_options(), added, manager.backend_named)
    return replace(reading, tables={})  # the command does not use other backends


def _provided(name: str, manager: PluginManager) -> tuple[CommandRecord, Source]:
    """Return a plugin's command, and the plugin. Raises ConfigurationError if there is no command of this name."""
    from elastic_core.config.sources import to_load
    from elastic_core.hooks.records import COMMANDS, CommandRecord
    from elastic_core.hooks.selection import names_of
    from elastic_core.text import did_you_mean

    names = [name for item in manager.records(CommandRecord) for name in names_of(item.record)]
    if name in names:
        provided = manager.provided(CommandRecord, name)
        return provided.record, provided.source
    known = [*COMMANDS, *names]
    home = manager.to_install(CommandRecord, name)
    advice = f"; {to_load(home)}" if home else did_you_mean(name, known) or "; see elastic --help"
    message = f"expected a command ({', '.join(known)}), found {name!r}{advice}"
    failed = (f"failed to load: {failure}" for failure in manager.failures)
    raise ConfigurationError(Problem("command", "\n  ".join([message, *failed, *manager.about_blocked()])))


_COMMANDS: dict[str, Callable[[Sequence[str]], int | None]] = {
    "run": run,
    "--version": version,
    "-V": version,
    "--help": usage,
    "-h": usage,
    "help": usage,
}


def _open_standard_streams() -> None:
    """Open closed standard streams on /dev/null. Otherwise, one of the agent's pipes or files would get a standard
    stream's number and receive the workers' output."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def _left_a_call_behind(argv: Sequence[str]) -> bool:
    """Return whether a thread is still waiting for a store that does not answer."""
    if argv[:1] in (["status"], ["drain"], ["stop"]):
        return threading.active_count() > 1
    return any(thread.name.startswith(("rendezvous", "elastic-call")) for thread in threading.enumerate())


def _leave_at_once(code: int) -> NoReturn:
    """Exit without Python's cleanup, which could hang or crash, and in which a signal would end the process with
    another exit code. Multiprocessing would wait forever for a process that did not die. C++ code would abort if the
    interpreter exited during a hung call."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code)


def _load_plugins(sources: Sources, allowed: Sequence[str] | None, command: str = "run") -> PluginManager:
    """Load the allowed plugins, and those of the distribution that provides the command."""
    from elastic_core import config
    from elastic_core.hooks.manager import PluginManager
    from elastic_core.hooks.records import CommandRecord

    home = CommandRecord.homes.get(command)
    if allowed is not None and home is not None:
        allowed = (*allowed, home)
    return PluginManager.load(sources.environ, reserved=config.RESERVED, allowed=allowed)


def current_folder() -> Path:
    """Return the working directory, or its former path if it has been removed."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path("/", os.environ.get("PWD", ""))


def read_like_run(
    argv: Sequence[str],
    command: CommandRecord | None = None,
    loaded: tuple[Sources, Sequence[str] | None, PluginManager] | None = None,
    **more: Any,
) -> tuple[PluginManager, Reading]:
    """Load the plugins and read a command line of `run` or of a `command` that is `like_run`, which needs no script.
    `loaded` contains the sources, the allowed distributions, and the plugins that are already loaded. If others are
    allowed, the plugins are loaded again. A plugin's option that is named like one of the command's own flags is left
    out. Raises ConfigurationError, or _HelpPrinted if the command line asks for help."""
    from elastic_core import config

    def others(reading: Reading) -> Sequence[Problem]:
        error = plan_for(reading, manager).error
        return error.problems if error else ()

    sources = loaded[0].like_run() if loaded else config.Sources(argv, os.environ, current_folder())
    own = config.own_specs(command) if command else {}
    specs = {**config.SPECS, **own}
    allowed = sources.allowed_plugins(specs)
    name = command.name if command else "run"
    manager = loaded[2] if loaded and loaded[1] == allowed else _load_plugins(sources, allowed, name)
    added = [option for option in manager.added_options() if option.name.replace("-", "_") not in own]
    line = sources.line({**specs, **config.specs_of_options(added)})
    if line.help:
        from elastic_core.config.explain import command_help, help_text

        show(command_help(command) if command else help_text(added))
        raise _HelpPrinted
    try:
        more |= {"backend_named": manager.backend_named, "others": others}
        reading = config.read(sources, added, own=tuple(own.values()), require_script=command is None, **more)
    except ConfigurationError:
        for failure in manager.failures:  # perhaps the plugin would have added a setting that is unknown without it
            _complain(f"elastic: failed to load: {failure}")
        for blocked in () if line.certain else manager.about_blocked():
            _complain(f"elastic: {blocked}")
        for conflict in manager.option_conflicts():  # a flag that is left out is unknown, too
            _complain(f"elastic: {conflict}")
        raise
    _expect_guessed(allowed, reading.settings.plugins)
    return manager, reading


def _expect_guessed(allowed: Sequence[str] | None, read: Sequence[str] | None) -> None:
    if read != allowed:
        expected = "must precede all flags that plugins add; if a config file sets it, --config must precede them"
        raise ConfigurationError(Problem("--plugins", expected))


def plan_for(reading: Reading, manager: PluginManager) -> Plan:
    """Return the plan for what `read_like_run` has read. The plan may have problems (see `Plan.error`)."""
    from elastic_core.compose.plan import plan_of

    return plan_of(reading, manager)


def configure_log(reading: Reading, manager: PluginManager) -> None:
    """Configure the log, and log what was ignored and which plugins failed to load."""
    from elastic_core import log

    log.configure(reading.settings.log_format, reading.settings.log_level)
    logger = log.get_logger()
    for problem in reading.left_out:
        logger.warning("setting ignored", origin=problem.origin, reason=problem.message)
    for failure in manager.failures:  # not an error, because the run may not need the plugin
        logger.warning("plugin failed", **failure.source.as_dict(), reason=failure.reason)
    for reason in manager.about_unknown_blocks():
        logger.warning("plugin not blocked", reason=reason)
    for reason in manager.about_unknown_allowed():
        logger.warning("plugin not installed", reason=reason)
    for conflict in manager.option_conflicts():
        for source in conflict.losers:
            logger.warning("plugin failed", **source.as_dict(), option=conflict.name, reason=f"left out: {conflict}")


def _error_of(reading: Reading, manager: PluginManager, history: History) -> BaseException | None:
    """Run the job, and return the error that ended it, if any."""
    from elastic_core import launch
    from elastic_core.compose.policy import script_entry
    from elastic_core.log import get_logger

    script = reading.script or ""
    try:
        plan = plan_for(reading, manager).checked()
        settings = plan.settings
        more = {"not_used": ",".join(plan.unused)} if plan.unused else {}
        if reading.config_file is not None:
            more["config_file"] = str(reading.config_file)
        get_logger().info("run started", run_id=settings.rdzv_id, backend=settings.rdzv_backend, script=script, **more)
        entry = script_entry(settings, script, reading.script_args, os.environ)
        with plan.naming_origins():
            launch.run_job(plan, entry, os.environ, (history,))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - returned to the caller
        return error
    return None


def _explain_failure(
    error: BaseException, run_id: str = "", command: str = "run", history: History | None = None
) -> int:
    from elastic_core import report

    code = report.exit_code_of(error)
    if not isinstance(error, (ElasticError, KeyboardInterrupt)):
        _complain("".join(traceback.format_exception(error)))
    if command != "run" and isinstance(error, KeyboardInterrupt):
        _complain(f"elastic {command}: interrupted from the keyboard")
    elif command != "run" and isinstance(error, ElasticError) and not isinstance(error, ConfigurationError):
        _complain(f"elastic {command}: {report.message_of(error)}")  # without a job's report
    elif code != ExitCode.SUCCESS:
        reason = history.finished.reason if history and history.finished else ""
        _complain(report.as_text(error, run_id, reason, history.restarts_by_round if history else {}), report.in_color)
    return code


def to_json(content: object) -> str:
    """Return the content as JSON, formatted as in all commands."""
    import json

    return json.dumps(content, indent=2)


def _for_people(text: str) -> str:
    """Escape control characters, which external names and messages may contain."""
    if text.replace("\n", "").isprintable():  # avoids the import below, for example for help and version
        return text
    from elastic_core.text import printable

    return printable(text)


def show(text: str) -> None:
    """Print to stdout, with control characters escaped. A closed pipe is not an error. Raises ConfigurationError if
    stdout cannot be written to, for example because a disk is full."""
    try:
        print(_for_people(text.rstrip("\n")), flush=True)
    except OSError as error:
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as null:
            os.dup2(null.fileno(), sys.stdout.fileno())  # a failing flush at exit would change the exit code
        if not isinstance(error, BrokenPipeError):  # as with `elastic plugins | head`
            raise ConfigurationError(Problem("standard output", str(error.strerror or error))) from error


def _complain(text: str, highlight: Callable[[str], str] = str) -> None:
    """Print to stderr, unless its reader stalls. If stderr is a terminal with colors, `highlight` is applied to the
    text. Errors are ignored, because the exit code still reports the failure."""
    from elastic_core.log import Sink, shows_colors

    text = _for_people(text.rstrip("\n"))
    Sink(patience=_PATIENCE).write(highlight(text) if shows_colors(sys.stderr) else text)
