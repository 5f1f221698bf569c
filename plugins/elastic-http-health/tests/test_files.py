"""Token files: replaced files are loaded again, and files that other users can read log a warning."""

from __future__ import annotations

import os
import pwd

import pytest
from asking import VALUES, ask
from elastic_http_health.files import exposure
from elastic_http_health.options import Options, read_options
from elastic_testing import eventually

from elastic_core.clock import SystemClock

AT_ONCE = 20.0  # seconds, on a machine that may stall


@pytest.fixture
def token(tmp_path):
    file = tmp_path / "token"
    file.write_text("first\n")
    file.chmod(0o600)
    return file


@pytest.fixture
def port(serve, token):
    return serve(read_options({**VALUES, "token_file": str(token)})).port


def code(port, token):
    return ask(port, "/status", headers={"Authorization": f"Bearer {token}"}).status


def replaced(file, text):
    new = file.with_name("new")
    new.write_text(text)
    new.replace(file)


def linked(file, text):
    """Like the kubelet: the file is a symlink through another symlink, which is replaced."""
    folder = file.with_name(text)
    folder.mkdir()
    (folder / file.name).write_text(text)
    data, new = file.with_name("..data"), file.with_name("..data_tmp")
    new.symlink_to(folder)
    new.replace(data)
    if not file.is_symlink():
        replace_by_link = file.with_name("link")
        replace_by_link.symlink_to(data / file.name)
        replace_by_link.replace(file)


@pytest.mark.parametrize("change", [replaced, linked, lambda file, text: file.write_text(text)])
def test_rotated_token_is_loaded(port, token, change):
    assert (code(port, "first"), code(port, "second!")) == (200, 401)
    for before, now in (("first", "second!"), ("second!", "third!")):
        change(token, now)
        eventually(lambda now=now: code(port, now) == 200)
        assert code(port, before) == 401


def test_last_token_stays_valid_while_its_file_is_empty(port, token, capfd):
    token.write_text("")
    log_text = ""

    def is_logged():
        nonlocal log_text
        assert (code(port, "first"), code(port, "")) == (200, 401)
        log_text += capfd.readouterr().err
        return "health endpoint failed" in log_text

    eventually(is_logged)
    assert "the previous content is used: a token must have 1 to 1024 printable ASCII characters" in log_text
    token.unlink()
    eventually(lambda: is_logged() and log_text.count("health endpoint failed") == 2)
    assert "first" not in log_text
    token.write_text("second")
    eventually(lambda: code(port, "second") == 200)
    assert "health endpoint failed" not in capfd.readouterr().err


def test_hanging_file_system_does_not_delay_answers(port, token):
    """Opening a pipe without a writer blocks."""
    token.unlink()
    os.mkfifo(token)
    begun = SystemClock().now()
    while SystemClock().now() - begun < 2:
        assert code(port, "first") == 200
        assert ask(port, "/livez").status == 200
    assert SystemClock().now() - begun < AT_ONCE
    with open(token, "w") as back:
        back.write("second")
    eventually(lambda: code(port, "second") == 200)


NOBODY = pwd.getpwnam("nobody").pw_uid


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize(
    ("owner", "mode", "fine"),
    [
        (0, 0o600, True), (0, 0o400, True), (0, 0o640, False), (0, 0o644, False), (0, 0o602, False),
        (NOBODY, 0o440, True), (NOBODY, 0o640, True), (NOBODY, 0o644, False), (NOBODY, 0o604, False),
    ],
)  # fmt: skip
def test_exposed_token_file_is_detected(token, owner, mode, fine):
    token.chmod(mode)
    os.chown(token, owner, -1)
    found = exposure(str(token))
    assert (found == "") is fine
    assert fine or (f"{mode:04o}" in found and "chmod 600" in found and "fsGroup" in found)


def warnings(capfd):
    return [line for line in capfd.readouterr().err.splitlines() if "health endpoint exposed" in line]


def test_exposed_endpoint_without_a_token_logs_one_warning(serve, token, capfd):
    port = serve(Options(host="0.0.0.0")).port
    (warning,) = warnings(capfd)
    for part in (f"0.0.0.0:{port}", "the output and stack of a failed worker", "--health-conf token_file=PATH"):
        assert part in warning
    serve()
    serve(read_options({**VALUES, "host": "0.0.0.0", "token_file": str(token)}))
    assert warnings(capfd) == []
    token.chmod(0o644)
    serve(read_options({**VALUES, "token_file": str(token)}))
    (warning,) = warnings(capfd)
    assert f"other users may read or change {token}, whose mode is 0644" in warning
