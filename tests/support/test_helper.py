"""A helper process, which also notices the end of its parent."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

import pytest
from elastic_testing import eventually
from elastic_testing.campaign.stage import lives

from elastic_core.support.processes import HelperProcess

pytestmark = pytest.mark.integration

LONG = 60.0
READS = """
import os, sys
print(*sys.argv[1:], os.getcwd(), *sorted(os.environ), flush=True)
for line in sys.stdin:
    print("read", line.strip(), flush=True)
print("the end", flush=True)
"""


@pytest.fixture
def helper(tmp_path):
    """A function that starts a helper which prints its arguments, environment and input, or another program."""
    made = []

    def start(program=READS, **options):
        file = tmp_path / "program.py"
        file.write_text(program)
        made.append(HelperProcess(file, output=subprocess.PIPE, **options))
        return made[-1]

    yield start
    for one in made:
        one.kill()
        one.close(LONG)
        one.output.close()


def lines(helper):
    return helper.output.read().decode(errors="surrogateescape").splitlines()


def test_helper_reads_orders_until_closed(helper):
    one = helper(arguments=["a", "b c"], environment={"ONLY": "this"})
    assert one.order("watch 7")
    assert one.order("bytes \udcff")
    one.close(LONG)
    one.close(LONG)
    header, *read = lines(one)
    assert header.startswith("a b c / ")
    assert "ONLY" in header and "PATH" not in header and "HOME" not in header
    assert read == ["read watch 7", "read bytes \udcff", "the end"]
    assert one.order("after the end")  # not an error after a requested close


def test_first_order_after_the_loss_returns_false(helper):
    one = helper()
    os.kill(one.pid, signal.SIGKILL)
    eventually(lambda: not lives(one.pid))
    assert not one.order("one")
    assert one.order("two")
    one.close(LONG)


def test_close_kills_a_hanging_helper_with_its_children(helper):
    one = helper("import os, signal, time\nchild = os.fork()\nif child: print(child, flush=True)\nsignal.pause()\n")
    child = int(one.output.readline())
    one.close(0.05)
    eventually(lambda: not lives(one.pid) and not lives(child))


def test_kill_ends_children_of_a_dead_helper(helper):
    starts = "import os, subprocess, sys\nprint(subprocess.Popen(['sleep', '600']).pid, flush=True)\nsys.stdin.read()"
    one = helper(starts)
    child = int(one.output.readline())
    os.kill(one.pid, signal.SIGKILL)
    eventually(lambda: not lives(one.pid))
    one.kill()
    eventually(lambda: not lives(child))


def test_forked_child_does_not_keep_the_helpers_pipe_open(helper):
    """The child keeps running after our end is closed; the helper must still see end-of-file."""
    one, (reader, writer) = helper(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        select.select([reader], [], [], 60)  # until the test is done
        os._exit(0)
    try:
        one.drop()
        assert lines(one)[-1] == "the end"
    finally:
        os.close(writer)
        os.close(reader)
        os.waitpid(child, 0)


def test_helper_sees_end_of_input_when_its_parent_is_killed(tmp_path):
    file, mark = tmp_path / "program.py", tmp_path / "mark"
    file.write_text(f"import sys; sys.stdin.read(); open({str(mark)!r}, 'w').close()")
    code = (
        "import os, signal; from elastic_core.support.processes import HelperProcess;"
        f"HelperProcess({str(file)!r}); os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=180).returncode == -signal.SIGKILL
    eventually(mark.exists)
