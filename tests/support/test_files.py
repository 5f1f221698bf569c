"""The rules of which files and folders are trusted, with files of other users."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core.support import files

OTHER_USER, THIRD_USER = 12345, 12346
root_only = pytest.mark.skipif("os.geteuid() != 0", reason="only root can change owners")


def give(path, uid=OTHER_USER, mode=None, gid=-1):
    os.chown(path, uid, gid, follow_symlinks=False)
    if mode is not None:
        os.chmod(path, mode)
    return path


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    return path


@pytest.fixture
def file(folder):
    path = folder / "file"
    path.write_text("ours")
    path.chmod(0o644)
    return path


def test_own_file_is_trusted(file):
    assert files.distrust_reason(file) == ""


@root_only
def test_file_of_another_user_is_distrusted(file):
    assert files.distrust_reason(give(file)) == f"{file} belongs to user {OTHER_USER}"


@pytest.mark.parametrize("mode", [0o646, 0o666])
def test_world_writable_file_is_distrusted(file, mode):
    file.chmod(mode)
    assert files.distrust_reason(file) == f"other users may write to {file}"


@root_only
def test_group_writable_file_needs_the_owners_private_group(file):
    file.chmod(0o664)
    assert files.distrust_reason(file) == ""  # root's own group
    assert "other users may write" in files.distrust_reason(give(file, -1, gid=OTHER_USER))
    assert "other users may write" in files.distrust_reason(give(file, -1, gid=65534))


@root_only
def test_parent_folders_are_checked(file, folder, tmp_path):
    folder.chmod(0o777)
    assert files.distrust_reason(file) == f"other users may write to {folder}"
    folder.chmod(0o1777)
    assert files.distrust_reason(file) == ""
    give(tmp_path)
    assert files.distrust_reason(file) == f"{tmp_path} belongs to user {OTHER_USER}"


@root_only
def test_symlinks_on_the_path_and_their_targets_are_checked(file, folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to("folder/../folder")
    assert files.distrust_reason(link / "file") == ""
    give(link)
    assert files.distrust_reason(link / "file") == f"{link} belongs to user {OTHER_USER}"
    give(link, 0)
    folder.chmod(0o777)
    assert files.distrust_reason(link / "file") == f"other users may write to {folder}"


def test_missing_or_circular_path_raises_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.distrust_reason(tmp_path / "missing")
    (tmp_path / "circle").symlink_to("circle")
    for probe in (files.distrust_reason, files.followed):
        with pytest.raises(OSError, match="symbolic links"):
            probe(tmp_path / "circle")


def test_shell_pipe_is_trusted():
    reader, writer = os.pipe()
    assert files.distrust_reason(Path(f"/dev/fd/{reader}")) == ""
    os.close(reader)
    os.close(writer)


@root_only
@pytest.mark.integration
def test_read_only_mounts_and_unmapped_folders_are_trusted(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    probe = "import sys; from pathlib import Path; from elastic_core.support.files import distrust_reason"
    probe = f"{probe}; print(distrust_reason(Path(sys.argv[1])))"
    mounts = 'mount -t tmpfs none "$1" && chmod 777 "$1" && echo > "$1/file" && chmod 644 "$1/file" && '
    show = '"$2" -c "$3" "$1/file"'
    words = ["sh", str(folder), sys.executable, probe]

    def reason_of(*command):
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=180, check=False)
        if "not permitted" in done.stderr:
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert "other users may write" in reason_of("unshare", "-m", "sh", "-c", mounts + show)
    assert reason_of("unshare", "-m", "sh", "-c", f'{mounts} mount -o remount,ro "$1" && {show}') == ""
    # In a user namespace with root only, folders of unmapped users are accepted, but a file of such a user is not.
    folder.chmod(0o755)
    (folder / "file").write_text("")
    give(folder)
    assert reason_of("unshare", "-Ur", "sh", "-c", show) == ""
    give(folder / "file")
    assert reason_of("unshare", "-Ur", "sh", "-c", show) == f"{folder}/file belongs to user nobody"


@root_only
def test_symlink_of_another_user_is_not_followed(file, folder):
    link = folder / "link"
    link.symlink_to(file)
    assert files.followed(link) == file
    give(link)
    with pytest.raises(PermissionError, match=f"it is a link that belongs to user {OTHER_USER}"):
        files.followed(link)
    with pytest.raises(PermissionError, match=f"it is a link that belongs to user {OTHER_USER}"):
        files.open_to_append(link)
    assert file.read_text() == "ours"


@root_only
def test_folder_owner_may_redirect_folders_but_not_files(file, folder, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "scratch").symlink_to(folder)
    (home / "file").symlink_to(file)
    for path in (home, home / "scratch", home / "file"):
        give(path)
    assert files.followed(home / "scratch" / "file") == file
    with pytest.raises(PermissionError, match="it is a link"):
        files.followed(home / "file")
    give(home / "scratch", THIRD_USER)
    with pytest.raises(PermissionError, match="it is a link"):
        files.followed(home / "scratch" / "new")


@root_only
def test_foreign_file_in_a_shared_folder_is_rejected(file, folder):
    give(file)
    os.close(files.open_to_append(file))  # only the folder's owner can have created it
    folder.chmod(0o1777)
    with pytest.raises(PermissionError, match=f"it was created by user {OTHER_USER} in .*, where others may write"):
        files.open_to_append(file)
    give(folder)
    os.close(files.open_to_append(file))  # the folder's owner created it, and may
    assert file.read_text() == "ours"


def test_hard_linked_file_in_a_shared_folder_is_rejected(file, folder, tmp_path):
    (tmp_path / "precious").hardlink_to(file)
    os.close(files.open_to_append(file))
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="one of 2 hard links"):
        files.open_to_append(file)


def test_pipe_is_opened_only_with_a_reader(folder):
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="this pipe has no reader"):
        files.open_to_append(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = files.open_to_append(pipe)
    assert os.get_blocking(writer)
    os.write(writer, b"text")
    assert os.read(reader, 10) == b"text"
    os.close(reader)
    os.close(writer)


@root_only
def test_pipe_of_another_user_is_rejected_without_blocking(folder):
    folder.chmod(0o1777)
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    give(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for probe in (files.open_to_append, files.check_existing):
        with pytest.raises(PermissionError, match=f"created by user {OTHER_USER}"):
            probe(pipe)
    os.close(reader)


def test_devices_and_open_files_can_be_appended_to(file):
    os.close(files.open_to_append(Path("/dev/null")))
    held = os.open(file, os.O_RDWR)
    for path in (Path(f"/dev/fd/{held}"), Path(f"/proc/self/fd/{held}")):
        again = files.open_to_append(path)
        os.write(again, b" more")
        os.close(again)
    assert file.read_text() == "ours more more"
    os.close(held)


def test_new_files_have_fixed_modes_despite_umask(folder):
    before = os.umask(0)
    try:
        os.close(files.open_to_append(folder / "log"))
        files.replace(folder / "result", "text")
        files.make_folders(folder, "job", "round")
        with open(folder / "error", "w", opener=files.open_regular):
            pass
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE((folder / name).stat().st_mode) for name in ("log", "result", "job", "error")}
    assert modes == {"log": 0o644, "result": 0o644, "job": 0o755, "error": 0o644}
    assert {path.name for path in folder.iterdir()} == set(modes)  # without temporary files


def test_failed_replace_leaves_no_temporary_file(folder):
    (folder / "result" / "in it").mkdir(parents=True)
    with pytest.raises(OSError, match="result"):
        files.replace(folder / "result", "text")
    assert [path.name for path in folder.iterdir()] == ["result"]


def test_open_regular_truncates_files_and_rejects_links(file, folder):
    (folder / "link").symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"):
        files.open_regular(str(folder / "link"), os.O_WRONLY)
    assert file.read_text() == "ours"
    with open(file, "w", opener=files.open_regular) as opened:
        opened.write("new")
    assert file.read_text() == "new"


def test_make_folders_reuses_existing_folders(folder, tmp_path):
    (tmp_path / "scratch").symlink_to(folder)
    for _ in range(2):
        assert files.make_folders(tmp_path / "scratch", "job", "round") == folder / "job" / "round"
    assert (folder / "job" / "round").is_dir()
    (folder / "elsewhere").mkdir()
    (folder / "linked").symlink_to("elsewhere")
    assert files.make_folders(folder, "linked", "round") == folder / "elsewhere" / "round"


@root_only
def test_make_folders_rejects_folders_of_other_users(folder):
    folder.chmod(0o1777)
    (folder / "job").mkdir()
    give(folder / "job")
    with pytest.raises(PermissionError, match=f"it belongs to user {OTHER_USER}"):
        files.make_folders(folder, "job", "round")
    give(folder)  # accepted: the folder's owner is responsible, and some file systems assign all files to one user
    assert files.make_folders(folder, "job", "round") == folder / "job" / "round"
    (folder / "linked").symlink_to("job")
    give(folder / "linked", THIRD_USER)
    with pytest.raises(PermissionError, match=f"a link that belongs to user {THIRD_USER}"):
        files.make_folders(folder, "linked")


@pytest.mark.integration
def test_mount_point_is_overwritten(tmp_path):
    """Such as a container's /dev/termination-log."""
    for name in ("outside", "inside"):
        (tmp_path / name).write_text("before")
    mount = 'mount --bind outside inside && exec "$0" -c "$1"'
    code = "from pathlib import Path; from elastic_core.support.files import replace; replace(Path('inside'), 'after')"
    done = subprocess.run(["unshare", "-m", "sh", "-c", mount, sys.executable, code], cwd=tmp_path, capture_output=True)
    if b"mount:" in done.stderr or b"unshare:" in done.stderr:
        pytest.skip(done.stderr.decode())
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / name).read_text() for name in ("outside", "inside")] == ["after", "before"]
