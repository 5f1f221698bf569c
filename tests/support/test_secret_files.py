"""Secret files read by root and by another user: which are rejected, and with which message."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import elastic_core
from elastic_core.support.secret_files import MOST_BYTES, read_secret

NOBODY, SOMEBODY = 65534, 65533
READ = """
import os, sys
path, package, user, *groups = sys.argv[1:]
sys.path.insert(0, package)
from elastic_core.support.secret_files import read_secret
os.setgroups(list(map(int, groups)))
os.setgid(int(user))
os.setuid(int(user))
try:
    print("read", read_secret(path).decode())
except ValueError as error:
    print("refused", error)
"""
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can create files of other users")


def test_secret_may_be_in_the_home_directory(tmp_path, monkeypatch):
    (tmp_path / "secret").touch(0o600)
    (tmp_path / "secret").write_bytes(b"open sesame\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read_secret("~/secret") == b"open sesame"
    with pytest.raises(ValueError, match="cannot read the secret file ~no-such-user/secret: "):
        read_secret("~no-such-user/secret")


@pytest.fixture
def place():
    """A folder that every user can read but only its owner can write to."""
    with tempfile.TemporaryDirectory(prefix="elastic-secrets-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def secret_in(path, mode=0o600, owner=None, group=None, content=b"s3cret"):
    path.write_bytes(content)
    path.chmod(mode)
    if owner is not None:
        os.chown(path, owner, -1 if group is None else group)
    return path


def read_by(user, path, *wrapped, groups=()):
    """The output of a process of that user that reads the secret."""
    package = Path(elastic_core.__file__).parents[1]
    command = [*wrapped, sys.executable, "-I", "-S", "-c", READ, path, package, user, *groups]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=180, check=False)
    assert done.stderr == ""
    return done.stdout.strip()


def refusal(path):
    with pytest.raises(ValueError) as caught:
        read_secret(path)
    assert "s3cret" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("content", [b"s3cret", b"s3cret\n", b"s3cret\r\n\n"])
def test_secret_is_read_without_line_end(tmp_path, content):
    assert read_secret(secret_in(tmp_path / "secret", content=content)) == b"s3cret"


def test_spaces_and_binary_bytes_are_kept(tmp_path):
    assert read_secret(str(secret_in(tmp_path / "secret", content=b" \x00\xff \n"))) == b" \x00\xff "


def test_secret_above_4_kib_is_rejected(tmp_path):
    assert len(read_secret(secret_in(tmp_path / "most", content=b"x" * MOST_BYTES))) == MOST_BYTES
    assert "at most 4096 bytes, but" in refusal(secret_in(tmp_path / "more", content=b"x" * (MOST_BYTES + 1)))


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_empty_secret_is_rejected(tmp_path, content):
    assert "is empty; write a secret into it" in refusal(secret_in(tmp_path / "secret", content=content))


def test_non_regular_file_is_rejected_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "the secret must be in a regular file" in refusal(tmp_path / "pipe")
    assert "the secret must be in a regular file" in refusal(tmp_path)
    assert "the secret must be in a regular file" in refusal("/dev/null")
    assert "No such file or directory" in refusal(tmp_path / "missing")
    assert "Not a directory" in refusal(secret_in(tmp_path / "secret") / "below")


def test_own_symlinks_are_followed(tmp_path):
    secret_in(tmp_path / "secret")
    (tmp_path / "relative").symlink_to("../" + tmp_path.name + "/secret")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative")
    assert read_secret(tmp_path / "absolute") == b"s3cret"


def test_group_writable_secret_is_rejected(tmp_path):
    assert "(mode 0620)" in refusal(secret_in(tmp_path / "secret", 0o620))


@pytest.mark.integration
@root
@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644])
def test_secret_readable_by_others_is_rejected_with_a_remedy(place, mode):
    path = secret_in(place / "secret", mode, NOBODY)
    answer = read_by(NOBODY, path)
    assert answer == f"refused other users can read the secret in {path} (mode {mode:04o}); run `chmod 600 {path}`"
    path.chmod(0o600)
    assert read_by(NOBODY, path) == "read s3cret"


@pytest.mark.integration
@root
def test_file_of_another_user_is_rejected(place):
    path = secret_in(place / "secret", 0o644, SOMEBODY)
    assert f"but {path} belongs to user {SOMEBODY}" in read_by(NOBODY, path)
    assert f"but {path} belongs to user {SOMEBODY}" in refusal(path)


@pytest.mark.integration
@root
def test_group_members_can_read_roots_secret(place):
    path = secret_in(place / "secret", 0o440, 0, SOMEBODY)
    assert read_by(NOBODY, path, groups=[SOMEBODY]) == "read s3cret"
    assert "Permission denied" in read_by(NOBODY, path)


@pytest.mark.integration
@root
def test_world_readable_secret_of_root_is_rejected(place):
    path = secret_in(place / "secret", 0o644)
    assert f"(mode 0644); as root, run `chmod 640 {path}`" in read_by(NOBODY, path)
    assert f"(mode 0644); run `chmod 600 {path}`" in refusal(path)


@pytest.mark.integration
@root
def test_symlink_of_another_user_is_not_followed(place):
    (place / "real").mkdir()
    secret_in(place / "real" / "secret", 0o600, NOBODY)
    (place / "last").symlink_to("real/secret")
    (place / "folder").symlink_to("real")
    for link in ("last", "folder"):
        os.chown(place / link, SOMEBODY, SOMEBODY, follow_symlinks=False)
    for path in (place / "last", place / "folder" / "secret"):
        assert f"belongs to user {SOMEBODY}; name the file itself" in read_by(NOBODY, path)
    for link in ("last", "folder"):
        os.chown(place / link, 0, 0, follow_symlinks=False)
    for path in (place / "last", place / "folder" / "secret"):
        assert read_by(NOBODY, path) == "read s3cret"


@pytest.mark.integration
@root
@pytest.mark.parametrize("mode", [0o400, 0o440, 0o444, 0o644])
@pytest.mark.parametrize("options", ["ro", "rw"])
def test_mounted_kubernetes_secret_is_read(place, mode, options):
    """The layout that Kubernetes uses, in a separate mount namespace."""
    mounted = f"""
        mount -t tmpfs -o mode=1777 none {place} && cd {place} && mkdir ..2026 && printf 's3cret\\n' > ..2026/key &&
        chown 0:{SOMEBODY} ..2026/key && chmod {mode:o} ..2026/key && ln -s ..2026 ..data && ln -s ..data/key key &&
        mount -o remount,{options} {place} && exec "$@"
    """
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("cannot create a mount namespace here")
    answer = read_by(NOBODY, place / "key", "unshare", "--mount", "sh", "-c", mounted, "sh", groups=[SOMEBODY])
    if mode == 0o400:
        assert "Permission denied" in answer
    elif options == "rw" and mode & 0o004:
        assert f"(mode {mode:04o})" in answer
    else:
        assert answer == "read s3cret"


INSPECTED = """
import ctypes, os, subprocess, sys
package, path, looks = sys.argv[1:]
sys.path.insert(0, package)
from elastic_core.support.secret_files import read_secret
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # a change of user has the same effect
for step in (0, 1):
    command = ["/bin/sh", "-c", looks, "sh", str(os.getpid())]
    print(subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0)
    read_secret(path)
child = os.fork()
if child == 0:
    os._exit(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1)
"""


@pytest.mark.integration
@root
def test_reading_a_secret_makes_the_process_undumpable(place):
    path = secret_in(place / "secret", owner=NOBODY)
    package = Path(elastic_core.__file__).parents[1]
    inspect = 'head -c 1 "/proc/$1/environ"'
    command = [sys.executable, "-I", "-S", "-c", INSPECTED, package, path, inspect]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.split() == ["True", "False", "True"]
