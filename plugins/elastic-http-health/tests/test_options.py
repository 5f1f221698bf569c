"""Options in `--health-conf`, and errors about invalid ones."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest
from asking import VALUES
from elastic_http_health.options import Options, read_options
from elastic_http_health.plugin import elastic_health_endpoints
from elastic_http_health.server import HttpHealthServer

from elastic_core.errors import ConfigurationError
from elastic_core.parsing import type_options
from elastic_core.support.sockets import PortReservation, cannot_bind


def read(**values):
    return read_options({**VALUES, **values})


def problems(**values):
    with pytest.raises(ConfigurationError) as caught:
        read(**values)
    return str(caught.value)


def test_option_defaults_match_the_class():
    assert read() == Options()


def test_token_from_a_file_is_hidden_in_repr(tmp_path):
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    found = read(token_file=str(file))
    assert found.bearer() == "s3cret"
    assert "s3cret" not in repr(found)


DUMPABLE = """
import ctypes, sys
from elastic_http_health.options import read_options
for file in (None, sys.argv[1]):
    read_options({"host": "127.0.0.1", "token_file": file, "connections": 64, "rate": 200.0})
    print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
"""


@pytest.mark.integration
def test_reading_a_token_file_disables_core_dumps(tmp_path):
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    command = [sys.executable, "-c", DUMPABLE, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.split() == ["1", "0"]


def test_all_problems_are_reported_together():
    found = problems(host="", token="a", token_file="b")
    for part in ("host must not be empty", "are mutually exclusive"):
        assert part in found


def test_allowed_hosts_are_parsed():
    given = "Node7  *.cluster.example ::1 *"
    assert read(allowed_hosts=given).allowed_hosts == ("node7", "*.cluster.example", "::1", "*")
    for wrong in ("http://node7", "node7:8080", "node7;node8", "a/b"):
        found = problems(allowed_hosts=f"node6 {wrong}")
        assert f"expected allowed_hosts as names without scheme and port, separated by spaces, found {wrong!r}" in found


def test_numbers_out_of_bounds_are_refused():
    (record,) = elastic_health_endpoints()
    _, found = type_options(record.options, {"connections": 1, "rate": "nan"}, "--health-conf")
    assert [str(problem) for problem in found] == [
        "--health-conf: connections: expected a whole number from 4 to 1000000, found 1",
        "--health-conf: rate: expected a number from 1 to 1000000, found 'nan'",
    ]


@pytest.mark.parametrize("token", ["", "a\nb", "caf\xe9", "x" * 2000])
def test_token_that_no_header_can_carry_is_refused(token):
    found = problems(token=token)
    assert "printable ASCII" in found and "secrets.token_urlsafe" in found
    assert not token or token not in found


@pytest.mark.parametrize("name", ["missing", ".", "a\0b"])
def test_unreadable_token_file_is_refused(tmp_path, name):
    assert "cannot read the token file" in problems(token_file=str(tmp_path / name))


@pytest.mark.integration
@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid", "a" * 300, "1.2.3", "fe80::1%nowhere"])
def test_host_of_another_machine_is_refused(view, host):
    server = HttpHealthServer(view, 0, 30.0, Options(host=host))
    with pytest.raises((ConfigurationError, OSError), match="host: cannot listen on"):
        server.start()
    server.stop()


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("localhost", "127.0.0.1"),
        ("0.0.0.0", "127.0.0.1"),
        ("::", "127.0.0.1"),
        ("::1", "::1"),
        ("::", "::1"),
        ("::ffff:127.0.0.1", "127.0.0.1"),
    ],
)
def test_server_listens_at_the_given_host(serve, host, asked):
    if ":" in host and cannot_bind(socket.AF_INET6, ("::1", 0)):
        pytest.skip("this machine has no IPv6")
    server = serve(Options(host=host))
    with socket.create_connection((asked, server.port), 60) as link:
        link.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
        assert link.recv(100).startswith(b"HTTP/1.1 200 ")


def elastic(tmp_path, *words, **environ):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ELASTIC_", "PET_"))}
    command = (sys.executable, "-m", "elastic_core", *words)
    return subprocess.run(command, env={**kept, **environ}, cwd=tmp_path, capture_output=True, text=True, timeout=180)


def run(tmp_path, *flags):
    return elastic(tmp_path, "run", "--node-id=n", *flags, "--no-python", "echo", "ran")


@pytest.mark.integration
def test_run_with_bad_options_starts_no_worker(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = str(other.getsockname()[1])
        done = run(tmp_path, "--health-port", taken)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--health-port: the health endpoint 'http' cannot use port {taken}" in done.stderr
    done = run(tmp_path, "--health-port=0", "--health-conf=token_file=nowhere,host=127.0.0.1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot read the token file 'nowhere': No such file or directory" in done.stderr


def test_token_option_is_marked_secret():
    (record,) = elastic_health_endpoints()
    assert [option.name for option in record.options if option.secret] == ["token"]


WORKER = """
import os, urllib.request
print(dict(os.environ))
for path in ("", "status", "metrics", "livez?verbose"):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{path}", headers={"Authorization": "Bearer s3cret"})
    print(urllib.request.urlopen(request, timeout=60).read().decode())
"""


@pytest.mark.integration
def test_token_file_content_never_leaves_the_agent(tmp_path):
    """The token reaches neither the workers nor the agent's own output."""
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    token.chmod(0o600)
    held = PortReservation()
    script = tmp_path / "worker.py"
    script.write_text(WORKER.replace("{port}", str(held.port)))
    flags = ("--log-level=debug", f"--health-port={held.port}", f"--health-conf=token_file={token}", str(script))
    for command in ("run", "explain"):
        done = elastic(tmp_path, command, "--rdzv-id=j", *flags)
        assert done.returncode == 0, done.stderr
        assert "s3cret" not in done.stdout + done.stderr
        assert ("elastic_ready" in done.stdout) == (command == "run")
        assert "health endpoint exposed" not in done.stderr
    held.release()


@pytest.mark.integration
def test_token_on_the_command_line_logs_a_warning(tmp_path):
    done = run(tmp_path, "--health-port=0", "--health-conf=rate=100,token=s3cret")
    assert (done.returncode, "s3cret" in done.stderr) == (0, False)
    warnings = [line for line in done.stderr.splitlines() if "health endpoint exposed" in line]
    assert len(warnings) == 1
    assert "other users can see the token in the process list" in warnings[0]
    assert "token_file=PATH" in warnings[0]


NESTED = """
import os, subprocess, sys
print(sorted(name for name in os.environ if "HEALTH" in name), flush=True)
sys.exit(subprocess.run([sys.executable, "-m", "elastic_core", "run", "--no-python", "true"]).returncode)
"""


@pytest.mark.integration
def test_nested_agent_does_not_reuse_the_health_port(tmp_path):
    (tmp_path / "nested.py").write_text(NESTED)
    held = PortReservation()  # keeps other processes off the port
    ports = dict.fromkeys(("TORCHELASTIC_HEALTH_CHECK_PORT", "ELASTIC_HEALTH_PORT"), str(held.port))
    environ = {**ports, "ELASTIC_HEALTH": "http", "ELASTIC_HEALTH_CONF": "token=s3cret"}
    done = elastic(tmp_path, "run", "nested.py", **environ)
    held.release()
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


@pytest.mark.integration
def test_unused_health_variables_reach_the_workers(tmp_path):
    words = ("run", "--health=none", "--no-python", "printenv", "ELASTIC_HEALTH_PORT")
    done = elastic(tmp_path, *words, ELASTIC_HEALTH_PORT="1")
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
