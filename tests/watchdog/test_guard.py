"""`expires`: its calls to the client, and how it finds one."""

import os
import subprocess
import sys
import threading
import time

import pytest

from elastic_core.watchdog import TimerClient, expires
from elastic_core.watchdog.guard import CLIENT_VARIABLE

pytestmark = pytest.mark.integration

LIMIT_S = 60


class Recording(TimerClient):
    def __init__(self):
        self.calls = []

    def acquire(self, scope_id, expiration_time):
        self.calls.append(("acquire", scope_id, expiration_time))

    def release(self, scope_id):
        self.calls.append(("release", scope_id))

    def kinds(self):
        return [call[0] for call in self.calls]


class Unreachable(Recording):
    def acquire(self, scope_id, expiration_time):
        raise BrokenPipeError("no server")


def test_timer_runs_during_the_block():
    client = Recording()
    before = time.time()
    with expires(5.0, "load", client):
        assert client.kinds() == ["acquire"]
    _, scope, expiration = client.calls[0]
    assert scope == "load"
    assert before + 5 <= expiration <= time.time() + 5
    assert client.calls[1:] == [("release", "load")]


def test_default_scope_is_file_and_line():
    client = Recording()
    with expires(5.0, client=client):
        pass
    line = sys._getframe().f_lineno - 2
    assert [call[1] for call in client.calls] == [f"{__file__}#{line}"] * 2


def test_threads_at_one_line_have_separate_timers():
    client = Recording()
    both = threading.Barrier(2)

    def wait():
        with expires(5.0, client=client):
            both.wait(LIMIT_S)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert len({call[1] for call in client.calls}) == 2


def test_error_in_the_block_releases_the_timer_and_is_raised():
    client = Recording()
    with pytest.raises(ZeroDivisionError), expires(5.0, client=client):
        raise ZeroDivisionError
    assert client.kinds() == ["acquire", "release"]


def test_block_is_not_entered_without_a_timer():
    client = Unreachable()
    with pytest.raises(BrokenPipeError), expires(5.0, client=client):
        client.calls.append("entered")
    assert client.calls == []


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf")])
def test_invalid_time_limit_is_rejected(after):
    with pytest.raises(ValueError, match="expected a time limit of at least 0 seconds"):
        expires(after, client=Recording())


def run(script, **environ):
    plain = {name: value for name, value in os.environ.items() if name != CLIENT_VARIABLE}
    return subprocess.run(
        [sys.executable, "-c", script], env={**plain, **environ}, timeout=LIMIT_S, capture_output=True, text=True
    )


def test_missing_watchdog_error_explains_how_to_enable_one():
    done = run("from elastic_core.watchdog import expires\nwith expires(1): print('entered')")
    assert done.stdout == ""
    assert "RuntimeError" in done.stderr
    for word in ("elastic run --watchdog=file", "pip install elastic-file-timer", "configure", CLIENT_VARIABLE):
        assert word in done.stderr


PRINTING = """
from elastic_core.watchdog import TimerClient
made = 0
class Printing(TimerClient):
    def __init__(self):
        global made
        made += 1
    def acquire(self, scope_id, expiration_time):
        print('acquire', scope_id, made)
    def release(self, scope_id):
        print('release', scope_id, made)
"""


@pytest.fixture
def printing(tmp_path):
    (tmp_path / "printing.py").write_text(PRINTING)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}


def test_client_comes_from_the_agents_watchdog(printing):
    script = "from elastic_core.watchdog import expires\nfor step in 'ab':\n  with expires(1, step): pass"
    done = run(script, **printing, **{CLIENT_VARIABLE: "printing:Printing"})
    assert (done.stdout.splitlines(), done.stderr) == (["acquire a 1", "release a 1", "acquire b 1", "release b 1"], "")


def test_configured_client_takes_precedence():
    script = f"from elastic_core.watchdog import configure, expires{PRINTING}\nconfigure(Printing())"
    done = run(script + "\nwith expires(1, 'x'): pass", **{CLIENT_VARIABLE: "missing:thing"})
    assert (done.stdout, done.stderr) == ("acquire x 1\nrelease x 1\n", "")


def test_forked_process_creates_its_own_client(printing):
    script = """
import os
from elastic_core.watchdog import expires
with expires(1, 'parent'): pass
if os.fork() == 0:
    with expires(1, 'child'): pass
    os._exit(0) if not print(end='', flush=True) else None
os.wait()
"""
    done = run(script, **printing, **{CLIENT_VARIABLE: "printing:Printing", "PYTHONUNBUFFERED": "1"})
    assert done.stdout.splitlines() == ["acquire parent 1", "release parent 1", "acquire child 2", "release child 2"]


@pytest.mark.parametrize(
    ("maker", "words"),
    [
        ("no_such_module:make", "No module named 'no_such_module'"),
        ("printing:missing", "missing"),
        ("os:getcwd", "not a str"),
        ("printing", "has no watchdog for its timers"),
    ],
)
def test_client_creation_error_is_reported(printing, maker, words):
    done = run(
        "from elastic_core.watchdog import expires\nwith expires(1): print('entered')",
        **printing,
        **{CLIENT_VARIABLE: maker},
    )
    assert done.stdout == ""
    assert words in done.stderr.splitlines()[-1]
    assert "RuntimeError" in done.stderr
