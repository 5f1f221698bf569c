"""Functions as workers, with every start method."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import sys
import time

import pytest

from elastic_core.errors import ConfigurationError
from elastic_core.workers.functions import FunctionStarter, run_script
from elastic_core.workers.numa import Binding, Cpu, Machine

pytestmark = pytest.mark.integration

FUNCTIONS = """
import builtins, os, signal, sys, time

AT_IMPORT = os.environ.get("RANK")

if AT_IMPORT is None:
    def only_in_the_agent():
        pass

def give(value):
    return value

def rank():
    return {"rank": os.environ["RANK"], "session": os.getsid(0) == os.getpid(), "at import": AT_IMPORT}

def fail(text):
    raise ValueError(text)

def fail_with_own_file():
    with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
        file.write('{"message": "my own"}')
    raise ValueError("not this")

def fail_without_folder():
    os.environ["TORCHELASTIC_ERROR_FILE"] = "/no/such/folder/error.json"
    raise ValueError("still reported")

def leave(*codes):
    sys.exit(codes[int(os.environ["RANK"])])

def leave_daemon(path):
    if (pid := os.fork()) == 0:
        os.setsid()
        time.sleep(600)
        os._exit(0)
    with open(path, "w") as file:
        file.write(str(pid))

def vanish():
    os._exit(0)

def give_lambda():
    return lambda: 0

def refuse(name):
    raise getattr(builtins, name)("refused")

class Refusing:
    def __init__(self, name):
        self.name = name
    def __reduce__(self):
        return refuse, (self.name,)

def give_refusing(name):
    return Refusing(name)

def print_all():
    print("to stdout")
    print("to stderr", file=sys.stderr)
    os.write(1, b"from below\\n")

def print_and_die():
    print("last line")
    os.kill(os.getpid(), signal.SIGKILL)

def print_through_own_buffer(modules):
    class Buffer:
        def __init__(self, stream):
            self.stream, self.kept = stream, ""
        def write(self, text):
            self.kept += text
        def flush(self):
            kept, self.kept = self.kept, ""
            self.stream.write(kept)
            self.stream.flush()
    sys.modules.update(dict.fromkeys(modules, sys))
    sys.stdout = Buffer(sys.stdout)
    print("kept", end="")

def crash():
    os.kill(os.getpid(), signal.SIGSEGV)

def handlers():
    found = [signal.getsignal(signum) for signum in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)]
    return found == [signal.SIG_DFL] * 3 + [signal.default_int_handler]

def at_the_end(path):
    import atexit, threading
    def note(text):
        with open(path, "a") as file:
            file.write(text)
    atexit.register(note, "at exit")
    threading.Thread(target=lambda: (time.sleep(0.1), note("thread, "))).start()
    return "value"

def affinity():
    return os.sched_getaffinity(0)
"""


@pytest.fixture
def functions(function_module):
    return function_module(FUNCTIONS)


@pytest.fixture(params=["spawn", "fork", "forkserver"])
def method(request):
    return request.param


@pytest.fixture
def run(local_workers, call, plan):
    """A function that runs `function(*args)` in a complete round and returns the workers."""

    def run(function, *args, method="fork", workers=1, **options):
        rounds = local_workers(call(function, *args, method=method), **options)
        rounds.run(plan(workers))
        return rounds.workers

    return run


def test_return_values_are_keyed_by_global_rank(functions, run, method):
    values = run(functions.rank, method=method, workers=2).return_values()
    assert [(values[rank]["rank"], values[rank]["session"]) for rank in (0, 1)] == [("0", True), ("1", True)]
    if method == "spawn":  # the variables are set before the module is imported
        assert [values[rank]["at import"] for rank in (0, 1)] == ["0", "1"]


def test_program_cannot_reap_a_worker_by_accident(functions, local_workers, call, plan, method):
    rounds = local_workers(call(functions.leave, 3, method=method))
    pids = rounds.start(plan()).values()
    assert not {child.pid for child in multiprocessing.active_children()} & set(pids)
    assert [ended.exitcode for ended in rounds.wait_for_exits(1)] == [3]


@pytest.mark.parametrize("value", [None, {"a": (1, None)}, b"x" * 20_000_000], ids=["none", "nested", "large"])
def test_return_value_may_be_any_value(functions, run, value):
    assert run(functions.give, value).return_values() == {0: value}


def test_exception_becomes_failure_with_traceback(functions, run, method, capfd):
    workers = run(functions.fail, "reason 123", method=method)
    failure = workers.failures()[0]
    assert failure.exitcode == 1
    assert failure.stderr_tail[-1] == "ValueError: reason 123"
    assert "Traceback" in failure.message
    assert failure.message.endswith("ValueError: reason 123")
    assert failure.error_file_data["message"]["message"] == "ValueError: reason 123"
    assert int(failure.error_file_data["message"]["extraInfo"]["timestamp"]) > 0
    assert "reason 123" in capfd.readouterr().err
    assert workers.return_values() == {}


def test_error_file_written_by_the_function_is_kept(functions, run):
    assert run(functions.fail_with_own_file).failures()[0].message == "my own"


def test_unwritable_error_file_leaves_traceback_on_stderr(functions, run):
    assert run(functions.fail_without_folder).failures()[0].stderr_tail[-1] == "ValueError: still reported"


def test_exit_codes_of_functions_are_kept_if_they_are_valid(functions, run, method):
    """A worker whose exit code is no number or out of range has failed, too: os._exit would raise an error for it."""
    workers = run(functions.leave, 3, "", 0.0, 2**31, -(2**40), method=method, workers=5)
    found = {rank: failure.exitcode for rank, failure in workers.failures().items()}
    assert found == {0: 3, 1: 1, 2: 1, 3: 255, 4: 255}


def test_output_of_a_detached_process_delays_nothing(functions, run, tmp_path):
    """A forked process that has left its worker's session keeps copies of the worker's descriptors."""
    begun = time.monotonic()
    try:
        assert run(functions.leave_daemon, str(tmp_path / "pid")).return_values() == {0: None}
        assert time.monotonic() - begun < 25.0  # otherwise 30 s, as for a console that accepts nothing
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_function_calling_os_exit_returns_none(functions, run, method):
    workers = run(functions.vanish, method=method)
    assert (workers.return_values(), workers.failures()) == ({0: None}, {})


def test_unpicklable_return_value_fails_its_worker(functions, run, method):
    workers = run(functions.give_lambda, method=method)
    failure = workers.failures()[0]
    assert failure.exitcode == 1
    assert "the return value, a function, cannot be pickled" in failure.message
    assert workers.return_values() == {}


@pytest.mark.parametrize("error", ["FileNotFoundError", "RuntimeError", "SystemExit"])
def test_worker_whose_return_value_cannot_be_read_has_failed(functions, run, error):
    failure = run(functions.give_refusing, error).failures()[0]
    assert (failure.exitcode, failure.reason) == (0, f"its return value cannot be read: {error}: refused")


def test_forked_worker_of_a_program_without_stdout_has_its_own(functions, run, monkeypatch):
    closed = io.TextIOWrapper(io.BytesIO())
    closed.close()
    monkeypatch.setattr(sys, "stdout", closed)
    assert run(functions.give, 3).return_values() == {0: 3}


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_unpicklable_function_is_rejected_at_start(local_workers, call, plan, method):
    rounds = local_workers(call(lambda: 0, method=method))
    with pytest.raises(ConfigurationError, match="cannot be pickled"):
        rounds.start(plan(2))
    assert rounds.workers.running() == []


def test_function_missing_in_the_child_fails_with_traceback(functions, run):
    failure = run(functions.only_in_the_agent, method="spawn").failures()[0]
    assert failure.exitcode == 1
    assert "only_in_the_agent" in failure.stderr_tail[-1]
    assert failure.error_file_data


def test_function_output_is_captured(functions, run, method, tmp_path):
    run(functions.print_all, method=method, redirects=lambda rank: 3, log_dir=tmp_path)
    folder = tmp_path / "job" / "round-1"
    assert (folder / "rank-0.out").read_text().splitlines() == ["to stdout", "from below"]
    assert (folder / "rank-0.err").read_text() == "to stderr\n"


def test_output_printed_before_a_kill_is_kept(functions, run, method, tmp_path):
    workers = run(functions.print_and_die, method=method, redirects=lambda rank: 1, log_dir=tmp_path)
    assert workers.failures()[0].exitcode == -signal.SIGKILL
    assert (tmp_path / "job/round-1/rank-0.out").read_text() == "last line\n"


@pytest.mark.parametrize("imported", [[], ["torch.distributed"]])
def test_output_in_the_programs_own_buffer_is_kept(functions, run, method, imported, tmp_path):
    run(functions.print_through_own_buffer, imported, method=method, redirects=lambda rank: 1, log_dir=tmp_path)
    assert (tmp_path / "job/round-1/rank-0.out").read_text() == "kept"


def test_crash_shows_the_python_stack(functions, run, method):
    failure = run(functions.crash, method=method).failures()[0]
    assert failure.exitcode == -signal.SIGSEGV
    assert "in crash" in failure.stack


def test_forked_child_has_default_signal_handlers(functions, run):
    handled = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT)
    before = {signum: signal.signal(signum, lambda *_: None) for signum in handled}
    try:
        assert run(functions.handlers).return_values() == {0: True}
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)


def test_function_threads_and_exit_handlers_finish(functions, run, method, tmp_path):
    """As in multiprocessing, forked children do not run exit handlers."""
    workers = run(functions.at_the_end, str(tmp_path / "notes"), method=method)
    assert workers.return_values() == {0: "value"}
    assert (tmp_path / "notes").read_text() == "thread, " + ("at exit" if method == "spawn" else "")


def test_functions_are_bound_to_their_cpus(functions, run, method):
    one = max(os.sched_getaffinity(0))
    binding = Binding("node", Machine((Cpu(one, 0, 0, 0, 0),)))
    assert run(functions.affinity, method=method, binding=binding).return_values() == {0: {one}}


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_script_runs_as_a_function(run, tmp_path, method):
    (tmp_path / "sibling.py").write_text("VALUE = 'imported'\n")
    (tmp_path / "script.py").write_text(
        "import json, sys, sibling\n"
        "assert __name__ == '__main__'\n"
        f"json.dump([sys.argv, sibling.VALUE], open({str(tmp_path / 'found')!r}, 'w'))\n"
    )
    workers = run(run_script, str(tmp_path / "script.py"), "--flag", method=method)
    assert workers.failures() == {}
    assert json.loads((tmp_path / "found").read_text()) == [[str(tmp_path / "script.py"), "--flag"], "imported"]


@pytest.mark.parametrize(("script", "curable"), [("broken.py", False), ("imports.py", True)])
def test_only_a_syntax_error_of_the_script_itself_is_incurable(run, tmp_path, script, curable):
    (tmp_path / "broken.py").write_text("def f(:\n")
    (tmp_path / "imports.py").write_text("import broken\n")
    failure = run(run_script, str(tmp_path / script)).failures()[0]
    assert failure.curable == curable
    assert "SyntaxError" in failure.message


def test_unknown_start_method_is_rejected():
    with pytest.raises(ValueError, match="thread"):
        FunctionStarter(print, (), "thread")
