"""`--watchdog=file` as an installed plugin."""

import os
import subprocess
import sys

import pytest
from elastic_file_timer.plugin import elastic_watchdogs
from elastic_testing import eventually

pytestmark = pytest.mark.integration

LIMIT_S = 60


def elastic(*arguments, **environ):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ELASTIC_", "TORCHELASTIC"))}
    return subprocess.run(
        [sys.executable, "-m", "elastic_core", *arguments],
        env={**kept, **environ},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(
        """
import os, stat
from elastic_core.watchdog import expires
with expires(after=60): pass
path = os.environ["TORCHELASTIC_TIMER_FILE"]
print(path, oct(stat.S_IMODE(os.stat(path).st_mode)), oct(stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode)))
"""
    )
    return str(path)


def test_record_has_the_path_option_only():
    (record,) = elastic_watchdogs()
    assert record.name == "file"
    assert [option.name for option in record.options] == ["path"]


def test_plugin_import_loads_nothing_heavy():
    script = "import sys, elastic_file_timer.plugin; print({'torch', 'psutil', 'structlog'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.stdout == "set()\n", done.stderr


def test_torchruns_variable_enables_the_timer(script):
    done = elastic("run", script, TORCHELASTIC_ENABLE_FILE_TIMER="1")
    assert done.returncode == 0, done.stderr
    path, mode, folder_mode = done.stdout.split()
    assert (mode, folder_mode) == ("0o600", "0o700")
    assert not os.path.exists(os.path.dirname(path))


def test_option_takes_precedence_over_the_pipe_variable(script, tmp_path):
    for environ, flags in [
        ({"TORCHELASTIC_TIMER_FILE": str(tmp_path / "variable")}, []),
        ({"TORCHELASTIC_TIMER_FILE": "ignored"}, [f"--watchdog-conf=path={tmp_path / 'option'}"]),
    ]:
        done = elastic("run", "--watchdog=file", *flags, script, **environ)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(str(tmp_path / ("option" if flags else "variable")))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["script.py"]


def test_nested_agent_has_its_own_pipe(script, tmp_path):
    outer = tmp_path / "outer.py"
    outer.write_text(f"""
import os, subprocess, sys
print(os.environ["TORCHELASTIC_TIMER_FILE"], flush=True)
sys.exit(subprocess.run([sys.executable, "-m", "elastic_core", "run", {script!r}]).returncode)
""")
    done = elastic("run", str(outer), TORCHELASTIC_ENABLE_FILE_TIMER="1")
    assert done.returncode == 0, done.stderr
    first, second, *_ = done.stdout.split()
    assert first != second


def test_impossible_pipe_path_is_bad_configuration(script, tmp_path):
    (tmp_path / "work").write_text("work")
    done = elastic("run", "--watchdog=file", script, TORCHELASTIC_TIMER_FILE=str(tmp_path / "work"))
    assert done.returncode == 2
    assert "the existing file is not a pipe" in done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "work").read_text() == "work"


def test_pipe_lasts_until_the_plugins_know_that_the_agent_has_finished(script, tmp_path):
    temporary, info = tmp_path / "tmp", tmp_path / "late-1.dist-info"
    temporary.mkdir()
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[elastic]\nlate = late\n")
    (tmp_path / "late.py").write_text(f"""
import glob
from elastic_core.plugin import hookimpl
@hookimpl
def elastic_agent_finished():
    print(len(glob.glob({str(temporary / "elastic-timer-*" / "timers")!r})))
""")
    done = elastic("run", "--watchdog=file", script, PYTHONPATH=str(tmp_path), TMPDIR=str(temporary))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("\n1\n"), done.stdout
    assert not list(temporary.iterdir())


RUNNING = ["-c", "import sys; print('here', flush=True); sys.stdin.read()"]


@pytest.mark.parametrize("named", [False, True], ids=["made up", "named"])
def test_killed_agent_leaves_at_most_the_named_pipe(named, tmp_path):
    temporary, mine = tmp_path / "tmp", tmp_path / "mine"
    temporary.mkdir()
    mine.mkdir()
    (mine / "work").write_text("work")
    environ = {"TMPDIR": str(temporary), **({"TORCHELASTIC_TIMER_FILE": str(mine / "timers")} if named else {})}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("ELASTIC_", "TORCHELASTIC"))}
    agent = subprocess.Popen(
        [sys.executable, "-m", "elastic_core", "run", "--watchdog=file", "--no-python", sys.executable, *RUNNING],
        env={**kept, **environ},
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )
    with agent:
        try:
            assert agent.stdout.readline() == b"here\n"
            assert len(list(temporary.iterdir())) == (1 if named else 2)
        finally:
            agent.kill()
        assert agent.stdout.read() == b""  # the worker has ended
    eventually(lambda: not list(temporary.iterdir()))
    assert sorted(path.name for path in mine.iterdir()) == (["timers", "work"] if named else ["work"])


def test_missing_temporary_folder_is_bad_configuration(start_process, tmp_path):
    script = """
import os, sys, tempfile
from elastic_file_timer import FileTimerServer
tempfile.gettempdir()
os.rmdir(sys.argv[1])
FileTimerServer(None, "job").start()
"""
    folder = tmp_path / "temporary"
    folder.mkdir()
    process = start_process(script, folder, TMPDIR=str(folder))
    stderr = process.communicate(timeout=LIMIT_S)[1]
    assert f"ConfigurationError: timer pipe: cannot create a private folder for the pipe in {folder}" in stderr
    assert "No such file or directory; set TMPDIR to another folder" in stderr
