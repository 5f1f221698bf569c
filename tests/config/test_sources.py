import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.config import SPECS, NodeRange
from elastic_core.config.environment import from_environment
from elastic_core.hooks.records import Option

FILE = 'role = "file"'
NOBODY = 65534
LADDER = [
    ("--role", "flag"),
    ("ELASTIC_ROLE", "elastic"),
    ("PET_ROLE", "pet"),
    ("elastic.toml: role", "file"),
    ("default", "default"),
]


@pytest.mark.parametrize("rung", range(len(LADDER)))
def test_precedence(desk, rung):
    present = [origin for origin, _ in LADDER[rung:]]
    if "elastic.toml: role" in present:
        desk.write(FILE)
    environ = {origin: value for origin, value in LADDER[rung:] if "_ROLE" in origin}
    line = "--role flag train.py" if "--role" in present else "train.py"
    reading = desk.read(line, environ)
    assert (reading.origins["role"], reading.settings.role) == LADDER[rung]


def test_only_the_winning_value_is_parsed(desk):
    desk.write("max_restarts = 'many'")
    assert desk.read("--max-restarts 1 train.py", {"PET_MAX_RESTARTS": "some"}).settings.max_restarts == 1


def test_a_stronger_source_replaces_a_table_whole(desk):
    desk.write("[rdzv_conf]\njoin_timeout = 9")
    assert desk.read("--rdzv-conf last_call_timeout=1 train.py").settings.rdzv_conf == {"last_call_timeout": "1"}


@pytest.mark.parametrize(("text", "value"), [("1", True), ("0", False), ("true", True), ("No", False)])
def test_switches_in_the_environment(desk, text, value):
    assert desk.read("train.py", {"PET_STANDALONE": text}).settings.standalone is value


def test_empty_variables_count_as_unset(desk):
    reading = desk.read("train.py", {"ELASTIC_ROLE": "", "PET_ROLE": "pet"})
    assert reading.origins["role"] == "PET_ROLE"


def test_bad_values_name_their_variable(desk):
    problems = desk.problems("train.py", {"ELASTIC_NNODES": "4:1", "PET_TEE": "7"})
    assert set(problems) == {"ELASTIC_NNODES", "PET_TEE"}


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}, {"watchdog": "file"}),
        ({"TORCHELASTIC_ENABLE_FILE_TIMER": "0"}, {"watchdog": None}),
        ({"TORCHELASTIC_HEALTH_CHECK_PORT": "8080"}, {"health": "http", "health_port": 8080}),
        ({"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "<${rank}>"}, {"log_line_prefix_template": "<${rank}>"}),
        ({"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}, {"shutdown_timeout": 5.0}),
        ({"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "7"}, {"kill_timeout": 7.0}),
        ({"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "0"}, {"kill_timeout": 10.0}),
    ],
)
def test_variables_that_torchrun_gives_a_meaning(desk, environ, expected):
    reading = desk.read("train.py", environ)
    assert {name: getattr(reading.settings, name) for name in expected} == expected
    changed = [name for name, value in expected.items() if value != SPECS[name].default]
    assert all(reading.origins[name] == next(iter(environ)) for name in changed)


def test_special_variables_rank_below_named_ones_and_above_the_file(desk):
    desk.write("shutdown_timeout = 1\nkill_timeout = 2")
    environ = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5", "PET_SHUTDOWN_TIMEOUT": "6"}
    assert desk.read("train.py", environ).settings.shutdown_timeout == 6
    del environ["PET_SHUTDOWN_TIMEOUT"]
    assert desk.read("train.py", environ).settings.shutdown_timeout == 5
    assert desk.read("train.py").settings.kill_timeout == 2


@pytest.mark.parametrize("name", ["TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "TORCHELASTIC_HEALTH_CHECK_PORT"])
def test_a_bad_special_variable_is_named(desk, name):
    assert "found 'soon'" in desk.problems("train.py", {name: "soon"})[name]


def test_loglevel_is_weaker_than_the_file(desk):
    assert desk.read("train.py", {"LOGLEVEL": "DEBUG"}).settings.log_level == "debug"
    desk.write("log-level = 'error'")
    assert desk.read("train.py", {"LOGLEVEL": "DEBUG"}).settings.log_level == "error"
    assert desk.read("train.py", {"LOGLEVEL": "DEBUG"}).origins["log_level"] == "elastic.toml: log-level"


def left_out(reading):
    return {problem.origin: problem.message for problem in reading.left_out}


def test_misspelled_variables_are_left_out_with_a_warning(desk):
    found = left_out(desk.read("train.py", {"ELASTIC_NNODE": "2", "ELASTIC_MAX_RESTART": "1"}))
    assert found["ELASTIC_NNODE"].endswith("did you mean ELASTIC_NNODES?")
    assert "ELASTIC_MAX_RESTARTS" in found["ELASTIC_MAX_RESTART"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ELASTIC_NODES", "http://es1:9200"),
        ("ELASTIC_NODE", "es1"),
        ("ELASTIC_ROLES", "ingest,data"),
        ("ELASTIC_LOGLEVEL", "x"),
    ],
)
def test_variables_of_other_programs_stop_no_run(desk, name, value):
    reading = desk.read("train.py", {name: value})
    assert reading.settings == desk.read("train.py").settings
    assert left_out(reading).keys() <= {name}


@pytest.mark.parametrize("prefix", ["ELASTIC", "PET"])
@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_address_of_a_kubernetes_service_is_no_port(desk, prefix, kind):
    """Kubernetes gives every pod such variables for services called elastic-master, pet-master or elastic-health."""
    environ = {f"{prefix}_MASTER_PORT": f"{kind}://10.0.0.1:8080", "ELASTIC_HEALTH_PORT": "tcp://10.0.0.2:80"}
    environ["TORCHELASTIC_HEALTH_CHECK_PORT"] = "tcp://10.0.0.3:80"
    reading = desk.read("train.py", environ)
    assert reading.settings == desk.read("train.py").settings
    assert left_out(reading).keys() == environ.keys()
    assert desk.problems("train.py", {"ELASTIC_HEALTH_PORT": "http"})


def test_a_service_does_not_hide_a_weaker_variable(desk):
    environ = {"ELASTIC_MASTER_PORT": "tcp://10.0.0.1:8080", "PET_MASTER_PORT": "1234"}
    assert desk.read("train.py", environ).settings.master_port == 1234


@pytest.mark.parametrize(
    "name",
    [
        "ELASTIC_DISABLE_PLUGINS",
        "ELASTIC_PASSWORD",
        "ELASTIC_VERSION",
        "ELASTIC_CLOUD_ID",
        "ELASTIC_APM_SERVER_URL",
        "ELASTIC_PORT",
        "ELASTIC_SERVICE_HOST",
        "ELASTIC_PORT_9200_TCP_ADDR",
        "PET_NNODE",
        "TORCHELASTIC_NNODES",
    ],
)
def test_strangers_with_our_prefix_are_left_alone(desk, name):
    desk.read("train.py", {name: "x"})


def test_our_own_settings_are_not_read_from_torchruns_prefix(desk):
    assert desk.read("train.py", {"PET_WATCHDOG": "file"}).settings.watchdog is None


@given(st.dictionaries(st.text(), st.text()))
def test_no_environment_breaks_the_reading(environ):
    assert not from_environment({f"X{name}": value for name, value in environ.items()}, SPECS).found


def test_options_of_plugins_have_variables_and_keys(desk):
    option = Option("drain-after", float, None, "when", "seconds")
    assert desk.read(added_options=(option,)).added == {"drain-after": None}
    desk.write("drain_after = 3")
    assert desk.read(added_options=(option,)).added == {"drain-after": 3.0}
    reading = desk.read("train.py", {"ELASTIC_DRAIN_AFTER": "4"}, added_options=(option,))
    assert (reading.added["drain-after"], reading.origins["drain-after"]) == (4.0, "ELASTIC_DRAIN_AFTER")


def test_natural_types_in_the_file(desk):
    path = desk.write(
        """
        nnodes = 1
        nproc-per-node = "gpu"
        backend = "etcd"
        endpoint = "a:1,b:2"
        run-id = 7
        standalone = false
        local_ranks_filter = [0, 11]
        duplicate_stdout_filters = ["a,b", "c"]
        signals_to_handle = ["SIGTERM"]
        shutdown_timeout = 3
        redirects = 1
        log_dir = "logs"
        [tee]
        0 = 3
        11 = 1
        [rdzv_conf]
        join_timeout = 9
        """
    )
    reading = desk.read()
    settings = reading.settings
    assert reading.config_file == path
    assert settings.nnodes == NodeRange(1, 1)
    assert (settings.rdzv_backend, settings.rdzv_endpoint, settings.rdzv_id) == ("etcd", "a:1,b:2", "7")
    assert settings.local_ranks_filter == {0, 11}
    assert settings.duplicate_stdout_filters == ("a,b", "c")
    assert settings.signals_to_handle == (signal.SIGTERM,)
    assert str(settings.tee) == "0:3,11:1"
    assert settings.rdzv_conf == {"join_timeout": "9"}
    assert reading.origins["rdzv_backend"] == "elastic.toml: backend"


def test_types_that_do_not_fit_are_named_with_their_key(desk):
    desk.write("nproc_per_node = true\nstandalone = 'perhaps'\nmax-restarts = 1.5")
    assert set(desk.problems()) == {
        "elastic.toml: nproc_per_node",
        "elastic.toml: standalone",
        "elastic.toml: max-restarts",
    }


def test_unknown_and_repeated_keys(desk):
    desk.write("nnode = 1\nbackend = 'a'\nrdzv-backend = 'b'\nconfig = 'x'\nqqqq = 1")
    problems = desk.problems()
    assert "did you mean nnodes?" in problems["elastic.toml: nnode"]
    assert "already set as elastic.toml: backend" in problems["elastic.toml: rdzv-backend"]
    assert "unknown" in problems["elastic.toml: config"]
    assert "elastic explain lists" in problems["elastic.toml: qqqq"]


def test_broken_toml_tells_the_line(desk):
    path = desk.write("role = 'x'\nnnodes = = 2")
    assert "line 2" in desk.problems()[str(path)]


def test_a_file_that_is_not_text(desk):
    (desk.folder / "elastic.toml").write_bytes(b"role = '\xff'")
    assert "UTF-8" in next(iter(desk.problems().values()))


def test_the_nearest_file_counts_and_elastic_toml_wins_in_a_folder(desk):
    desk.write("[tool.elastic]\nrole = 'shared'", "pyproject.toml")
    assert desk.read().settings.role == "shared"
    assert desk.read().origins["role"] == "pyproject.toml: tool.elastic.role"
    desk.write("role = 'own'")
    assert desk.read().settings.role == "own"
    (desk.folder.parent / "elastic.toml").write_text("role = 'above'")
    (desk.folder / "elastic.toml").unlink()
    (desk.folder / "pyproject.toml").write_text("[project]\nname = 'elastic-user'")
    assert desk.read().settings.role == "above"


def test_a_strangers_broken_pyproject_is_passed_by(desk):
    desk.write("dependencies = [elastic-core", "pyproject.toml")
    assert desk.read().config_file == desk.folder.parent / "elastic.toml"
    path = desk.write("[tool.elastic]\nrole = ", "pyproject.toml")
    assert "not valid TOML" in desk.problems()[str(path)]


def test_a_tool_table_of_another_type(desk):
    path = desk.write("tool.elastic = 3", "pyproject.toml")
    assert "expected a table [tool.elastic]" in desk.problems()[str(path)]


def test_a_named_file_is_the_only_one_read(desk):
    desk.write(FILE)
    desk.write("role = 'other'", "conf/other.toml")
    assert desk.read("--config conf/other.toml train.py").settings.role == "other"
    assert desk.read("train.py", {"ELASTIC_CONFIG": "conf/other.toml"}).settings.role == "other"
    named = desk.read("--config elastic.toml train.py", {"ELASTIC_CONFIG": "conf/other.toml"})
    assert named.settings.role == "file"


def test_a_named_file_that_is_not_there(desk):
    assert "No such file" in desk.problems("--config nowhere.toml train.py")["--config"]
    assert "No such file" in desk.problems("train.py", {"ELASTIC_CONFIG": "nowhere.toml"})["ELASTIC_CONFIG"]


def test_problems_of_all_sources_come_together(desk):
    desk.write("nnode = 1")
    problems = desk.problems("--max-restarts x missing.py", {"ELASTIC_ROLES": "a", "PET_TEE": "9"})
    assert set(problems) == {"--max-restarts", "ELASTIC_ROLES", "PET_TEE", "elastic.toml: nnode", "script"}


def test_folders_and_files_that_cannot_be_read(desk, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    assert "Is a directory" in desk.problems(f"--config {other} train.py")["--config"]
    assert desk.read("train.py", {"ELASTIC_CONFIG": str(desk.write(FILE))}).settings.role == "file"


def test_the_search_ends_at_the_home_folder(desk):
    above = desk.folder.parent / "elastic.toml"
    assert desk.read("train.py", {"HOME": "/nowhere"}).config_file == above
    assert desk.read("train.py", {"HOME": str(desk.folder.parent)}).config_file == above
    assert desk.read("train.py", {"HOME": str(desk.folder)}).config_file is None


@pytest.mark.parametrize("mode", [0o2775, 0o1777])
def test_file_in_a_folder_that_a_group_may_write_counts(desk, mode):
    """As on most clusters. It is the file's owner who counts."""
    path = desk.write("role = 'ours'")
    path.chmod(0o664)
    desk.folder.chmod(mode)
    if os.geteuid() == 0:
        os.chown(desk.folder, NOBODY, -1)
    reading = desk.read()
    assert (reading.settings.role, reading.left_out) == ("ours", [])
    assert desk.read(f"--config {path} train.py").settings.role == "ours"


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
@pytest.mark.parametrize("of", ["file", "link"])
def test_file_of_somebody_else_is_left_out_and_the_next_one_counts(desk, of):
    path = desk.write("role = 'theirs'")
    if of == "link":
        path.rename(desk.folder / "mine.toml")
        path.symlink_to("mine.toml")
    os.chown(path, NOBODY, -1, follow_symlinks=False)
    reading = desk.read()
    assert (reading.settings.role, reading.config_file) == ("default", desk.folder.parent / "elastic.toml")
    (problem,) = reading.left_out
    assert problem.origin == str(path)
    assert f"ignored, because {path} belongs to user " in problem.message
    assert desk.read(f"--config {path} train.py").settings.role == "theirs"


def test_file_that_everybody_may_write_is_left_out(desk):
    path = desk.write("role = 'whose'")
    path.chmod(0o666)
    reading = desk.read()
    assert reading.settings.role == "default"
    assert [problem.message for problem in reading.left_out if f"{path} is writable by everyone" in problem.message]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
def test_what_is_left_out_is_told_beside_what_is_missing(desk):
    path = desk.write("nnodes = '2'")
    os.chown(path, NOBODY, -1)
    assert set(desk.problems("--nnodes=x train.py")) == {"--nnodes", str(path)}
