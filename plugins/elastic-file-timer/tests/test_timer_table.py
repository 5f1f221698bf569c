"""From requests to expired timers, on a fake clock."""

import json
import os

import pytest
from elastic_file_timer import FileTimerRequest
from elastic_file_timer.timer_table import TimerTable
from elastic_testing import FakeClock
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.support.processes import process_start_time

ME = os.getpid()
EPOCH = 1_700_000_000.0


@pytest.fixture
def clock():
    return FakeClock(EPOCH)


@pytest.fixture
def table(clock):
    return TimerTable("job", clock)


def request(scope="step", deadline=10.0, pid=ME):
    return FileTimerRequest(pid, scope, 1.0, 9, "job", process_start_time(pid), deadline)


def line(request):
    return request.to_json().encode()


def torchs(scope="step", expiration_time=EPOCH + 10, pid=ME):
    fields = {"version": 1, "pid": pid, "scope_id": scope, "expiration_time": expiration_time, "signal": 9}
    return json.dumps(fields).encode()


def take(table, *lines):
    table.register(table.read(lines))


def changed(request, **fields):
    vars(request).update(fields)
    return request


def scopes(timers):
    return [timer.scope_id for timer in timers]


def test_wall_clock_deadline_of_torchs_client_is_converted(table, clock):
    clock.advance(3)
    take(table, torchs(expiration_time=EPOCH + 10))
    assert table.next_deadline() == pytest.approx(10.0)
    assert scopes(table.expired(clock.advance(7.5))) == ["step"]


def test_torchs_client_releases_our_clients_timer(table):
    take(table, line(request()))
    take(table, torchs(expiration_time=-1))
    assert table.next_deadline() is None


def test_request_of_another_run_is_refused_and_logged_once(table, logged):
    for _ in range(3):
        take(table, line(changed(request(), run_id="another")))
    assert table.next_deadline() is None
    assert (table.refused, table.taken) == ({"another run": 3}, 0)
    (entry,) = logged()
    assert (entry["event"], entry["kind"]) == ("timer request refused", "another run")
    assert "'job'" in entry["reason"] and "'another'" in entry["reason"]


def test_release_of_another_run_is_ignored(table):
    take(table, line(request()))
    take(table, line(changed(request(), run_id="another", expiration_time=-1.0)))
    assert table.next_deadline() == 10.0


def test_request_among_junk_lines_is_found(table, logged):
    take(table, b"", b"foreign", b"", b'{"version"', b'{"version": 1, "pid"' + line(request()), b"more of it")
    assert (table.refused, table.taken) == ({"unreadable": 4}, 1)
    assert table.next_deadline() == 10.0
    assert [entry["request"] for entry in logged()] == ["foreign"]
    take(table, line(request(scope="cut"))[:-1])
    assert (table.refused, table.taken) == ({"unreadable": 5}, 1)
    take(table, line(request(scope="blanks")) + b" \r")
    assert (table.refused, table.taken) == ({"unreadable": 5}, 2)
    take(table)
    take(table, *[b""] * 3)
    assert table.refused == {"unreadable": 5}


def test_shortest_valid_request_is_accepted(table, clock):
    take(table, b'{"version":1,"pid":%d,"scope_id":"","expiration_time":0,"signal":0}' % ME)
    assert (table.refused, table.taken) == ({}, 1)
    take(table, b'{"version":1,"pid":1,"scope_id":"","expiration_time":0,"signal":0}')
    assert (table.refused, table.taken) == ({}, 2)
    take(table, b'{"version":1,"pid":1,"scope_id":"","expiration_time":0,"signal":}')
    assert (table.refused, table.taken) == ({"unreadable": 1}, 2)


def test_reused_pid_with_other_start_time_does_not_expire(table, clock):
    take(table, line(changed(request(), started=process_start_time(ME) + 1)))
    assert table.expired(clock.advance(20)) == []


def test_request_of_an_ended_process_is_ignored(table, clock, start_process):
    process = start_process("")
    process.wait(60)
    take(table, torchs(pid=process.pid))
    assert table.next_deadline() is None


def test_timers_of_ended_processes_are_dropped(table, start_process):
    process = start_process("import sys; sys.stdin.read()")
    take(table, torchs(pid=process.pid))
    table.forget(set())
    assert table.next_deadline() is not None
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # leaves a zombie
    table.forget(set())
    assert table.next_deadline() is None


def test_timers_beyond_the_maximum_are_refused(clock):
    table = TimerTable("job", clock, most=2)
    for number in range(5):
        take(table, line(request(scope=str(number))))
    assert (table.taken, table.refused) == (2, {"too many timers": 3})


def test_start_time_is_read_despite_a_misleading_program_name(start_process, tmp_path):
    program = tmp_path / ") Z 1 1 (x"
    program.symlink_to("/bin/cat")
    process = start_process("import os, sys; os.execv(sys.argv[1], ['cat'])", program)
    process.stdin.write("ready\n")
    process.stdin.flush()
    assert process.stdout.readline() == "ready\n"
    assert process_start_time(process.pid) >= process_start_time(ME)


PIDS = st.sampled_from([ME, os.getppid()])  # processes that run
SCOPES = st.sampled_from("ab")
STEPS = st.one_of(
    st.tuples(st.just("acquire"), PIDS, SCOPES, st.integers(0, 20)),
    st.tuples(st.just("release"), PIDS, SCOPES),
    st.tuples(st.just("expired"), st.integers(0, 20)),
    st.tuples(st.just("forget"), st.sets(PIDS)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_running_timers_are_those_that_were_not_released(steps):
    table, running = TimerTable("job", FakeClock(EPOCH)), {}
    for number, (step, *arguments) in enumerate(steps):
        if step == "acquire":
            pid, scope, deadline = arguments
            running[pid, scope] = deadline + number / 100  # distinct, so that their order is unique
            take(table, line(request(scope, running[pid, scope], pid)))
        elif step == "release":
            pid, scope = arguments
            running.pop((pid, scope), None)
            take(table, line(changed(request(scope, pid=pid), expiration_time=-1.0)))
        elif step == "forget":
            table.forget(*arguments)
            running = {timer: deadline for timer, deadline in running.items() if timer[0] not in arguments[0]}
        else:
            due = sorted((timer for timer in running if running[timer] <= arguments[0]), key=running.get)
            assert [(it.worker_pid, it.scope_id) for it in table.expired(*arguments)] == due
            running = {timer: deadline for timer, deadline in running.items() if timer not in due}
        assert table.next_deadline() == min(running.values(), default=None)
