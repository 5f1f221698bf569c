"""Who decides what lies at a path: the rules, with files that belong to others."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core.support import files

STRANGER, OTHER = 12345, 12346
root_only = pytest.mark.skipif("os.geteuid() != 0", reason="only root can give files away")


def give(path, uid=STRANGER, mode=None, gid=-1):
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


def test_a_file_of_ours_is_trusted(file):
    assert files.distrust_reason(file) == ""


@root_only
def test_a_file_of_somebody_else_is_not(file):
    assert files.distrust_reason(give(file)) == f"{file} belongs to user {STRANGER}"


@pytest.mark.parametrize("mode", [0o646, 0o666])
def test_a_file_that_everybody_can_write_is_not(file, mode):
    file.chmod(mode)
    assert files.distrust_reason(file) == f"other users may write to {file}"


@root_only
def test_a_group_counts_as_others_unless_it_is_the_owner_s_own(file):
    file.chmod(0o664)
    assert files.distrust_reason(file) == ""  # root's own group
    assert "other users may write" in files.distrust_reason(give(file, -1, gid=STRANGER))
    assert "other users may write" in files.distrust_reason(give(file, -1, gid=65534))


@root_only
def test_folders_on_the_way_count(file, folder, tmp_path):
    folder.chmod(0o777)
    assert files.distrust_reason(file) == f"other users may write to {folder}"
    folder.chmod(0o1777)
    assert files.distrust_reason(file) == ""
    give(tmp_path)
    assert files.distrust_reason(file) == f"{tmp_path} belongs to user {STRANGER}"


@root_only
def test_links_on_the_way_count_and_where_they_lead(file, folder, tmp_path):
    link = tmp_path / "link"
    link.symlink_to("folder/../folder")
    assert files.distrust_reason(link / "file") == ""
    give(link)
    assert files.distrust_reason(link / "file") == f"{link} belongs to user {STRANGER}"
    give(link, 0)
    folder.chmod(0o777)
    assert files.distrust_reason(link / "file") == f"other users may write to {folder}"


def test_what_is_missing_or_leads_nowhere(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.distrust_reason(tmp_path / "missing")
    (tmp_path / "circle").symlink_to("circle")
    for look in (files.distrust_reason, files.followed):
        with pytest.raises(OSError, match="symbolic links"):
            look(tmp_path / "circle")


def test_a_pipe_of_a_shell_is_trusted():
    reader, writer = os.pipe()
    assert files.distrust_reason(Path(f"/dev/fd/{reader}")) == ""
    os.close(reader)
    os.close(writer)


@root_only
@pytest.mark.integration
def test_a_read_only_mount_cannot_be_written_and_unknown_folders_of_a_container_are_not_held_against_it(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    look = "import sys; from pathlib import Path; from elastic_core.support.files import distrust_reason"
    look = f"{look}; print(distrust_reason(Path(sys.argv[1])))"
    mounts = 'mount -t tmpfs none "$1" && chmod 777 "$1" && echo > "$1/file" && chmod 644 "$1/file" && '
    tell = '"$2" -c "$3" "$1/file"'
    words = ["sh", str(folder), sys.executable, look]

    def told(*command):
        done = subprocess.run([*command, *words], capture_output=True, text=True, timeout=180, check=False)
        if "not permitted" in done.stderr:
            pytest.skip(done.stderr)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert "other users may write" in told("unshare", "-m", "sh", "-c", mounts + tell)
    assert told("unshare", "-m", "sh", "-c", f'{mounts} mount -o remount,ro "$1" && {tell}') == ""
    # In a name space that knows only root, folders of all others pass; a file of nobody knows whom does not.
    folder.chmod(0o755)
    (folder / "file").write_text("")
    give(folder)
    assert told("unshare", "-Ur", "sh", "-c", tell) == ""
    give(folder / "file")
    assert told("unshare", "-Ur", "sh", "-c", tell) == f"{folder}/file belongs to user nobody"


@root_only
def test_a_link_of_somebody_else_is_not_followed(file, folder):
    link = folder / "link"
    link.symlink_to(file)
    assert files.followed(link) == file
    give(link)
    with pytest.raises(PermissionError, match=f"it is a link that belongs to user {STRANGER}"):
        files.followed(link)
    with pytest.raises(PermissionError, match=f"it is a link that belongs to user {STRANGER}"):
        files.open_to_append(link)
    assert file.read_text() == "ours"


@root_only
def test_who_owns_a_folder_may_redirect_folders_in_it_but_no_file(file, folder, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / "scratch").symlink_to(folder)
    (home / "file").symlink_to(file)
    for path in (home, home / "scratch", home / "file"):
        give(path)
    assert files.followed(home / "scratch" / "file") == file
    with pytest.raises(PermissionError, match="it is a link"):
        files.followed(home / "file")
    give(home / "scratch", OTHER)
    with pytest.raises(PermissionError, match="it is a link"):
        files.followed(home / "scratch" / "new")


@root_only
def test_where_others_write_a_file_of_theirs_is_refused(file, folder):
    give(file)
    os.close(files.open_to_append(file))  # nobody but the folder's owner can have put it there
    folder.chmod(0o1777)
    with pytest.raises(PermissionError, match=f"it was created by user {STRANGER} in .*, where others may write"):
        files.open_to_append(file)
    give(folder)
    os.close(files.open_to_append(file))  # the owner of the folder has put it there, and may
    assert file.read_text() == "ours"


def test_where_others_write_a_file_of_several_names_is_refused(file, folder, tmp_path):
    (tmp_path / "precious").hardlink_to(file)
    os.close(files.open_to_append(file))
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="one of 2 hard links"):
        files.open_to_append(file)


def test_a_pipe_is_written_to_as_soon_as_somebody_reads(folder):
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="this pipe has no reader"):
        files.open_to_append(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    writer = files.open_to_append(pipe)
    assert os.get_blocking(writer)
    os.write(writer, b"said")
    assert os.read(reader, 10) == b"said"
    os.close(reader)
    os.close(writer)


@root_only
def test_a_pipe_of_somebody_else_does_not_hold_us(folder):
    folder.chmod(0o1777)
    pipe = folder / "pipe"
    os.mkfifo(pipe)
    give(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    for look in (files.open_to_append, files.check_existing):
        with pytest.raises(PermissionError, match=f"created by user {STRANGER}"):
            look(pipe)
    os.close(reader)


def test_devices_and_open_files_are_written_to(file):
    os.close(files.open_to_append(Path("/dev/null")))
    held = os.open(file, os.O_RDWR)
    for path in (Path(f"/dev/fd/{held}"), Path(f"/proc/self/fd/{held}")):
        again = files.open_to_append(path)
        os.write(again, b" more")
        os.close(again)
    assert file.read_text() == "ours more more"
    os.close(held)


def test_a_new_file_has_a_mode_of_its_own(folder):
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
    assert {path.name for path in folder.iterdir()} == set(modes)  # and nothing else is left


def test_what_cannot_be_replaced_leaves_nothing_behind(folder):
    (folder / "result" / "in it").mkdir(parents=True)
    with pytest.raises(OSError, match="result"):
        files.replace(folder / "result", "text")
    assert [path.name for path in folder.iterdir()] == ["result"]


def test_a_regular_file_is_truncated_and_a_link_is_not_followed(file, folder):
    (folder / "link").symlink_to(file)
    with pytest.raises(OSError, match="symbolic links"):
        files.open_regular(str(folder / "link"), os.O_WRONLY)
    assert file.read_text() == "ours"
    with open(file, "w", opener=files.open_regular) as opened:
        opened.write("new")
    assert file.read_text() == "new"


def test_folders_are_made_and_used_again(folder, tmp_path):
    (tmp_path / "scratch").symlink_to(folder)
    for _ in range(2):
        assert files.make_folders(tmp_path / "scratch", "job", "round") == folder / "job" / "round"
    assert (folder / "job" / "round").is_dir()
    (folder / "elsewhere").mkdir()
    (folder / "linked").symlink_to("elsewhere")
    assert files.make_folders(folder, "linked", "round") == folder / "elsewhere" / "round"


@root_only
def test_folders_that_somebody_else_has_made_first(folder):
    folder.chmod(0o1777)
    (folder / "job").mkdir()
    give(folder / "job")
    with pytest.raises(PermissionError, match=f"it belongs to user {STRANGER}"):
        files.make_folders(folder, "job", "round")
    give(folder)  # then it is the owner's affair; and some file systems give all files to one user
    assert files.make_folders(folder, "job", "round") == folder / "job" / "round"
    (folder / "linked").symlink_to("job")
    give(folder / "linked", OTHER)
    with pytest.raises(PermissionError, match=f"a link that belongs to user {OTHER}"):
        files.make_folders(folder, "linked")
