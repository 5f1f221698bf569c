"""An unmodified script that uses torch's timers."""

import pytest

pytestmark = pytest.mark.torch

LIMIT_S = 60
SCRIPT = """
import os, sys, time
import torch.distributed.elastic.timer as timer
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
for step in range(50):
    with timer.expires(after=60):
        pass
print("done", flush=True)
with timer.expires(after=0.2, scope="last"):
    sys.stdin.read()
"""


def test_torchs_client(make_server, start_process, told, tmp_path):
    server = make_server(run_id="job", max_interval=60)
    server.start(told)
    process = start_process(SCRIPT, TORCHELASTIC_TIMER_FILE=str(tmp_path / "timers"), TORCHELASTIC_RUN_ID="job")
    assert process.stdout.readline() == "done\n", process.communicate("", timeout=LIMIT_S)
    assert told.scopes() == []
    (expiry,) = told.expiries()
    assert expiry.worker_pid == process.pid
    assert 0 <= expiry.late < 20  # and not as long as the interval
    assert (server.taken, server.refused) == (101, {})


def test_torchs_expires_takes_our_client(make_server, start_process, told, tmp_path):
    make_server().start(told)
    script = SCRIPT.replace("timer.FileTimerClient", "__import__('elastic_file_timer').FileTimerClient")
    process = start_process(script, TORCHELASTIC_TIMER_FILE=str(tmp_path / "timers"))
    assert process.stdout.readline() == "done\n", process.communicate("", timeout=LIMIT_S)
    assert told.scopes() == []
