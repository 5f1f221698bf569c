"""Files that hold a secret, read by root and by another user: which are refused, and with which words."""

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
root = pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")


@pytest.fixture
def place():
    """A folder that every user can reach, and nobody else writes to."""
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
    """What a process of that user says."""
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
def test_it_is_read_without_the_end_of_its_line(tmp_path, content):
    assert read_secret(secret_in(tmp_path / "secret", content=content)) == b"s3cret"


def test_spaces_and_bytes_of_any_value_are_part_of_it(tmp_path):
    assert read_secret(str(secret_in(tmp_path / "secret", content=b" \x00\xff \n"))) == b" \x00\xff "


def test_one_of_4_kib_is_read_and_a_larger_one_is_not(tmp_path):
    assert len(read_secret(secret_in(tmp_path / "most", content=b"x" * MOST_BYTES))) == MOST_BYTES
    assert "at most 4096 bytes, found more" in refusal(secret_in(tmp_path / "more", content=b"x" * (MOST_BYTES + 1)))


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_an_empty_one_is_refused(tmp_path, content):
    assert "is empty; write a secret into it" in refusal(secret_in(tmp_path / "secret", content=content))


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert "is not a regular file" in refusal(tmp_path / "pipe")
    assert "is not a regular file" in refusal(tmp_path)
    assert "is not a regular file" in refusal("/dev/null")
    assert "No such file or directory" in refusal(tmp_path / "missing")
    assert "Not a directory" in refusal(secret_in(tmp_path / "secret") / "below")


def test_links_of_this_user_are_followed(tmp_path):
    secret_in(tmp_path / "secret")
    (tmp_path / "relative").symlink_to("../" + tmp_path.name + "/secret")
    (tmp_path / "absolute").symlink_to(tmp_path / "relative")
    assert read_secret(tmp_path / "absolute") == b"s3cret"


def test_what_others_can_write_is_refused(tmp_path):
    assert "(mode 0620)" in refusal(secret_in(tmp_path / "secret", 0o620))


@pytest.mark.integration
@root
@pytest.mark.parametrize("mode", [0o604, 0o640, 0o644])
def test_a_file_of_the_user_that_others_can_read_is_refused_with_the_remedy(place, mode):
    path = secret_in(place / "secret", mode, NOBODY)
    told = read_by(NOBODY, path)
    assert told == (f"refused other users can read the secret in {path} (mode {mode:04o}); run `chmod 600 {path}`")
    path.chmod(0o600)
    assert read_by(NOBODY, path) == "read s3cret"


@pytest.mark.integration
@root
def test_a_file_of_another_user_is_refused_though_it_can_be_read(place):
    path = secret_in(place / "secret", 0o644, SOMEBODY)
    assert f"but {path} belongs to user {SOMEBODY}" in read_by(NOBODY, path)
    assert f"but {path} belongs to user {SOMEBODY}" in refusal(path)


@pytest.mark.integration
@root
def test_roots_file_for_a_group_is_read_by_its_members(place):
    path = secret_in(place / "secret", 0o440, 0, SOMEBODY)
    assert read_by(NOBODY, path, groups=[SOMEBODY]) == "read s3cret"
    assert "Permission denied" in read_by(NOBODY, path)


@pytest.mark.integration
@root
def test_roots_file_that_everybody_can_read_is_refused_to_root_too(place):
    path = secret_in(place / "secret", 0o644)
    assert f"(mode 0644); let root run `chmod 640 {path}`" in read_by(NOBODY, path)
    assert f"(mode 0644); run `chmod 600 {path}`" in refusal(path)


@pytest.mark.integration
@root
def test_a_link_of_another_user_is_not_followed_wherever_it_is_on_the_way(place):
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
def test_the_mount_of_a_secret_in_a_container(place, mode, options):
    """As Kubernetes lays it out; in a name space of its own."""
    mounted = f"""
        mount -t tmpfs -o mode=1777 none {place} && cd {place} && mkdir ..2026 && printf 's3cret\\n' > ..2026/key &&
        chown 0:{SOMEBODY} ..2026/key && chmod {mode:o} ..2026/key && ln -s ..2026 ..data && ln -s ..data/key key &&
        mount -o remount,{options} {place} && exec "$@"
    """
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no name space may be made here")
    told = read_by(NOBODY, place / "key", "unshare", "--mount", "sh", "-c", mounted, "sh", groups=[SOMEBODY])
    if mode == 0o400:
        assert "Permission denied" in told
    elif options == "rw" and mode & 0o004:
        assert f"(mode {mode:04o})" in told
    else:
        assert told == "read s3cret"


LOOKED_INTO = """
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
"""


@pytest.mark.integration
@root
def test_who_has_read_a_secret_is_not_looked_into_by_others_of_the_same_user(place):
    path = secret_in(place / "secret", owner=NOBODY)
    package = Path(elastic_core.__file__).parents[1]
    looks = 'head -c 1 "/proc/$1/environ"'
    command = [sys.executable, "-I", "-S", "-c", LOOKED_INTO, package, path, looks]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=180, check=True)
    assert done.stdout.split() == ["True", "False"]
