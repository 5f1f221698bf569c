"""A worker learns that it should stop, and its agent sees how far it is."""

import os
import subprocess
import sys
import time

import pytest

import elastic_core
from elastic_core.clock import SystemClock, later
from elastic_core.stop import STOP_FILE, StopFile

pytestmark = pytest.mark.integration

LIMIT_S = 60
LOOP = """
import elastic_core
step = 0
while not elastic_core.should_stop(step):
    print(step, flush=True)
    input()
    step += 1
print("stops at", step, elastic_core.stop_reason(), elastic_core.stop_deadline() > 100)
"""


@pytest.fixture
def page(tmp_path):
    file = StopFile(tmp_path / "stop")
    yield file
    file.close()


@pytest.fixture
def loop(page):
    """A function that starts a worker that begins a step for each line of input."""
    made = []

    def start(script=LOOP):
        environ = {**os.environ, STOP_FILE: str(page.path)}
        command = [sys.executable, "-c", script]
        made.append(
            subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        )
        return made[-1]

    yield start
    for process in made:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def soon():
    return later(SystemClock().now(), 1000.0)


def test_without_an_agent_nothing_stops():
    assert not elastic_core.should_stop(0)
    assert elastic_core.stop_deadline() is None
    assert elastic_core.stop_reason() == ""
    elastic_core.stopped(0)


def test_page_of_a_worker_that_has_not_begun_is_empty(page):
    assert (page.announced(), page.saved()) == (-1, False)


def test_agent_sees_the_last_step(page, loop):
    worker = loop()
    for step in range(3):
        assert worker.stdout.readline() == f"{step}\n"
        assert page.announced() == step
        worker.stdin.write("\n")


def test_worker_stops_at_the_agreed_step(page, loop):
    worker = loop()
    assert worker.stdout.readline() == "0\n"
    page.ask(soon(), "node b leaves")
    page.answer(2)
    worker.stdin.write("\n\n")
    out, _ = worker.communicate(timeout=LIMIT_S)
    assert out == "1\nstops at 2 node b leaves True\n"


def test_worker_waits_until_the_step_is_agreed(page, loop):
    worker = loop()
    assert worker.stdout.readline() == "0\n"
    page.ask(soon(), "")
    worker.stdin.write("\n")
    while page.announced() < 1:
        time.sleep(0.01)
    page.answer(1)
    assert worker.stdout.readline() == "stops at 1  True\n"


def test_worker_continues_if_there_is_no_agreement(page, loop):
    worker = loop()
    assert worker.stdout.readline() == "0\n"
    page.ask(soon(), "")
    page.answer(None)
    worker.stdin.write("\n")
    assert worker.stdout.readline() == "1\n"


def test_worker_does_not_wait_beyond_the_deadline(page, loop):
    worker = loop()
    assert worker.stdout.readline() == "0\n"
    page.ask(SystemClock().now(), "")
    worker.stdin.write("\n")
    assert worker.stdout.readline() == "1\n"


def test_acknowledgment_reaches_the_agent(page, loop):
    loop("import elastic_core; elastic_core.stopped(0)").wait(LIMIT_S)
    assert page.saved()


def test_long_reason_is_cut(page, loop):
    page.ask(soon(), "ü" * 1000)
    worker = loop("import elastic_core; print(len(elastic_core.stop_reason()))")
    assert 50 < int(worker.stdout.readline()) < 1000


def test_truncated_page_is_read_as_empty(page):
    os.truncate(page.path, 0)
    assert (page.announced(), page.saved()) == (-1, False)


def test_page_of_another_size_is_ignored(tmp_path, loop, page):
    os.truncate(page.path, 10)
    assert loop().stdout.readline() == "0\n"


FAMILY = """
import elastic_core, os, subprocess, sys
elastic_core.should_stop(1)
if (child := os.fork()) == 0:
    elastic_core.should_stop(7)
    elastic_core.stopped(7)
    os._exit(0)
os.waitpid(child, 0)
subprocess.run([sys.executable, "-c", "import elastic_core; elastic_core.should_stop(8)"], check=True)
"""


def test_only_the_first_process_of_a_worker_is_asked(page, loop):
    """A DataLoader process or a helper inherits the variable, but counts other steps."""
    loop(FAMILY).wait(LIMIT_S)
    assert (page.announced(), page.saved()) == (1, False)


def test_page_passes_to_the_next_process_when_the_first_has_ended(page, loop):
    """A wrapper script may start the training again."""
    loop("import elastic_core; elastic_core.should_stop(5)").wait(LIMIT_S)
    loop("import elastic_core; elastic_core.should_stop(2)").wait(LIMIT_S)
    assert page.announced() == 2


def test_acknowledgment_before_the_request_does_not_count(page, loop):
    worker = loop("import elastic_core\nelastic_core.stopped(0)\nprint()\ninput()\nelastic_core.stopped(1)")
    worker.stdout.readline()
    page.ask(soon(), "")
    assert not page.saved()
    worker.stdin.write("\n")
    worker.wait(LIMIT_S)
    assert page.saved()


def test_second_request_only_changes_the_deadline(page, loop):
    page.ask(soon(), "drained")
    worker = loop("import elastic_core\nelastic_core.stopped(1)\nprint()\ninput()\nprint(elastic_core.stop_deadline())")
    worker.stdout.readline()
    page.ask(later(SystemClock().now(), 100.0), "drained")
    assert page.saved()
    worker.stdin.write("\n")
    assert 0.0 < float(worker.stdout.readline()) <= 100.0
