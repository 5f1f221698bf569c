import os
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.config import SPECS, NodeRange
from elastic_core.config.sources import from_environment
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
def test_flags_precede_variables_config_file_and_defaults(config_reader, rung):
    present = [origin for origin, _ in LADDER[rung:]]
    if "elastic.toml: role" in present:
        config_reader.write(FILE)
    environ = {origin: value for origin, value in LADDER[rung:] if "_ROLE" in origin}
    line = "--role flag train.py" if "--role" in present else "train.py"
    reading = config_reader.read(line, environ)
    assert (reading.origins["role"], reading.settings.role) == LADDER[rung]


@pytest.mark.parametrize(
    ("file", "line", "name", "expected"),
    [
        ("standalone = true", "--nnodes=1:4 --rdzv-endpoint=h:1 --rdzv-id=j train.py", "rdzv_backend", "c10d"),
        ("standalone = true", "--rdzv-backend=c10d --rdzv-endpoint=h:1 train.py", "rdzv_endpoint", "h:1"),
        ("nnodes = 2\nrdzv_id = 'j'", "--standalone train.py", "rdzv_backend", "local"),
        ("run_path = true", "-m train", "run_path", False),
        ("no_python = true", "-m train", "no_python", False),
        ("module = true", "--no-python true", "module", False),
        ("warm_start = true", "--worker-starter=subprocess train.py", "warm_start", False),
        ("worker_starter = 'subprocess'", "--warm-start train.py", "worker_starter", None),
        ("nnodes = 2\nnode_rank = 1", "--nnodes=1 train.py", "node_rank", None),
        ("nnodes = 2\nnode_rank = 1", "--standalone train.py", "node_rank", None),
        ("health = 'none'", "--health-port=8123 train.py", "health", "http"),
    ],
)
def test_setting_overrides_what_contradicts_it_in_another_source(config_reader, file, line, name, expected):
    config_reader.write(file)
    reading = config_reader.read(line)
    assert getattr(reading.settings, name) == expected
    assert "overridden by --" in str(reading.left_out)


@pytest.mark.parametrize(
    ("file", "environ", "line", "name", "expected"),
    [
        ("nnodes = 2", {"ELASTIC_STANDALONE": "1"}, "--standalone=false", "nnodes", "2:2"),
        ("nnodes = 2", {"ELASTIC_STANDALONE": "1"}, "--rdzv-endpoint=h:1", "nnodes", "2:2"),
        ("module = true", {"ELASTIC_NO_PYTHON": "1"}, "--no-python=false", "module", "True"),
    ],
)
def test_overridden_value_overrides_nothing(config_reader, file, environ, line, name, expected):
    config_reader.write(f"{file}\n[rendezvous]\nid = 'j'\nendpoint = 'h:1'")
    assert str(getattr(config_reader.read(f"{line} train.py", environ).settings, name)) == expected


def test_default_given_explicitly_contradicts_nothing(config_reader):
    config_reader.write("standalone = true\nhealth = 'toy'")
    reading = config_reader.read("--nnodes=1 --health-port=8123 train.py")
    assert (reading.settings.standalone, reading.settings.health, reading.left_out) == (True, "toy", [])


def test_only_the_winning_value_is_parsed(config_reader):
    config_reader.write("max_restarts = 'many'")
    assert config_reader.read("--max-restarts 1 train.py", {"PET_MAX_RESTARTS": "some"}).settings.max_restarts == 1


def test_flag_replaces_a_whole_table(config_reader):
    config_reader.write("[rdzv_conf]\njoin_timeout = 9")
    assert config_reader.read("--rdzv-conf last_call_timeout=1 train.py").settings.rdzv_conf == {
        "last_call_timeout": "1"
    }


@pytest.mark.parametrize(("text", "value"), [("1", True), ("0", False), ("true", True), ("No", False)])
def test_switches_can_be_set_by_variables(config_reader, text, value):
    assert config_reader.read("train.py", {"PET_STANDALONE": text}).settings.standalone is value


def test_empty_variables_count_as_unset(config_reader):
    reading = config_reader.read("train.py", {"ELASTIC_ROLE": "", "PET_ROLE": "pet"})
    assert reading.origins["role"] == "PET_ROLE"


def test_bad_values_name_their_variable(config_reader):
    problems = config_reader.problems("train.py", {"ELASTIC_NNODES": "4:1", "PET_TEE": "7"})
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
def test_torchrun_variables_set_their_settings(config_reader, environ, expected):
    reading = config_reader.read("train.py", environ)
    assert {name: getattr(reading.settings, name) for name in expected} == expected
    changed = [name for name, value in expected.items() if value != SPECS[name].default]
    assert all(reading.origins[name] == next(iter(environ)) for name in changed)


def test_torchrun_variables_rank_between_named_ones_and_file(config_reader):
    config_reader.write("shutdown_timeout = 1\nkill_timeout = 2")
    environ = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5", "PET_SHUTDOWN_TIMEOUT": "6"}
    assert config_reader.read("train.py", environ).settings.shutdown_timeout == 6
    del environ["PET_SHUTDOWN_TIMEOUT"]
    assert config_reader.read("train.py", environ).settings.shutdown_timeout == 5
    assert config_reader.read("train.py").settings.kill_timeout == 2


@pytest.mark.parametrize("name", ["TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "TORCHELASTIC_HEALTH_CHECK_PORT"])
def test_bad_torchrun_variable_is_named(config_reader, name):
    assert "found 'soon'" in config_reader.problems("train.py", {name: "soon"})[name]


def test_config_file_overrides_loglevel(config_reader):
    assert config_reader.read("train.py", {"LOGLEVEL": "DEBUG"}).settings.log_level == "debug"
    config_reader.write("log-level = 'error'")
    assert config_reader.read("train.py", {"LOGLEVEL": "DEBUG"}).settings.log_level == "error"
    assert config_reader.read("train.py", {"LOGLEVEL": "DEBUG"}).origins["log_level"] == "elastic.toml: log-level"


@pytest.mark.parametrize("flag", ["--watchdog-conf=path=x", "--health-conf=hots=1", "--warm-start-exclude=numpy"])
def test_options_of_a_part_that_is_off_are_reported(flag, config_reader):
    ((origin, reason),) = left_out(config_reader.read(f"{flag} train.py")).items()
    assert flag.startswith(origin)
    assert "has no effect without" in reason


@pytest.mark.parametrize(
    "line",
    [
        "--watchdog=file --watchdog-conf=path=x",
        "--health-port=0 --health-conf=host=::1",
        "--warm-start --warm-start-exclude=numpy",
        "--worker-starter=warm --warm-start-exclude=numpy",
    ],
)
def test_options_of_a_selected_part_are_not_reported(line, config_reader):
    assert not left_out(config_reader.read(f"{line} train.py"))


def left_out(reading):
    return {problem.origin: problem.message for problem in reading.left_out}


def test_another_programs_invalid_variable_is_ignored_with_a_warning(config_reader):
    reading = config_reader.read("train.py", {"LOGLEVEL": "TRACE"})
    assert (reading.settings.log_level, list(left_out(reading))) == ("info", ["LOGLEVEL"])
    assert not left_out(config_reader.read("--log-level debug train.py", {"LOGLEVEL": "TRACE"}))


def test_misspelled_variables_are_ignored_with_a_warning(config_reader):
    assert "ELASTIC_DISABLE_PLUGINS" in str(left_out(config_reader.read("train.py", {"ELASTIC_DISABLE_PLUGIN": "x"})))
    found = left_out(config_reader.read("train.py", {"ELASTIC_NNODE": "2", "ELASTIC_MAX_RESTART": "1"}))
    assert found["ELASTIC_NNODE"].endswith("did you mean ELASTIC_NNODES?")
    assert "ELASTIC_MAX_RESTARTS" in found["ELASTIC_MAX_RESTART"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ELASTIC_NODES", "http://es1:9200"),
        ("ELASTIC_NODE", "es1"),
        ("ELASTIC_ROLES", "ingest,data"),
        ("ELASTIC_LOGLEVEL", "x"),
        ("ELASTIC_DISABLE_PLUGINS", "x"),
        ("ELASTIC_CLOUD_ID", "x"),
        ("ELASTIC_PORT_9200_TCP_ADDR", "x"),
        ("PET_NNODE", "x"),
        ("TORCHELASTIC_NNODES", "x"),
    ],
)
def test_variables_of_other_programs_are_ignored(config_reader, name, value):
    reading = config_reader.read("train.py", {name: value})
    assert reading.settings == config_reader.read("train.py").settings
    assert left_out(reading).keys() <= {name}


@pytest.mark.parametrize("prefix", ["ELASTIC", "PET"])
@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_kubernetes_service_address_is_not_a_port(config_reader, prefix, kind):
    """Kubernetes sets such variables in every pod for services named elastic-master, pet-master or elastic-health."""
    environ = {f"{prefix}_MASTER_PORT": f"{kind}://10.0.0.1:8080", "ELASTIC_HEALTH_PORT": "tcp://10.0.0.2:80"}
    environ["TORCHELASTIC_HEALTH_CHECK_PORT"] = "tcp://10.0.0.3:80"
    reading = config_reader.read("train.py", environ)
    assert reading.settings == config_reader.read("train.py").settings
    assert left_out(reading).keys() == environ.keys()
    assert config_reader.problems("train.py", {"ELASTIC_HEALTH_PORT": "http"})


def test_kubernetes_service_does_not_hide_another_variable(config_reader):
    environ = {"ELASTIC_MASTER_PORT": "tcp://10.0.0.1:8080", "PET_MASTER_PORT": "1234"}
    assert config_reader.read("train.py", environ).settings.master_port == 1234


def test_torchrun_prefix_applies_only_to_torchrun_settings(config_reader):
    assert config_reader.read("train.py", {"PET_WATCHDOG": "file"}).settings.watchdog is None


@given(st.dictionaries(st.text(), st.text()))
def test_any_environment_can_be_read(environ):
    assert not from_environment({f"X{name}": value for name, value in environ.items()}, SPECS).found


def test_plugin_options_have_variables_and_keys(config_reader):
    option = Option("drain-after", float, None, "when", "seconds")
    assert config_reader.read(added_options=(option,)).added == {"drain-after": None}
    config_reader.write("drain_after = 3")
    assert config_reader.read(added_options=(option,)).added == {"drain-after": 3.0}
    reading = config_reader.read("train.py", {"ELASTIC_DRAIN_AFTER": "4"}, added_options=(option,))
    assert (reading.added["drain-after"], reading.origins["drain-after"]) == (4.0, "ELASTIC_DRAIN_AFTER")


def test_config_file_accepts_toml_types(config_reader):
    path = config_reader.write(
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
    reading = config_reader.read()
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


def test_wrong_types_are_reported_with_their_key(config_reader):
    config_reader.write("nproc_per_node = true\nstandalone = 'perhaps'\nmax-restarts = 1.5")
    assert set(config_reader.problems()) == {
        "elastic.toml: nproc_per_node",
        "elastic.toml: standalone",
        "elastic.toml: max-restarts",
    }


def test_unknown_and_repeated_keys_are_reported(config_reader):
    config_reader.write("nnode = 1\nbackend = 'a'\nrdzv-backend = 'b'\nconfig = 'x'\nqqqq = 1")
    problems = config_reader.problems()
    assert "did you mean nnodes?" in problems["elastic.toml: nnode"]
    assert "already set as elastic.toml: backend" in problems["elastic.toml: rdzv-backend"]
    assert "unknown" in problems["elastic.toml: config"]
    assert "elastic explain lists" in problems["elastic.toml: qqqq"]


def test_broken_toml_error_has_the_line(config_reader):
    path = config_reader.write("role = 'x'\nnnodes = = 2")
    assert "line 2" in config_reader.problems()[str(path)]


def test_file_may_begin_with_a_byte_order_mark(config_reader):
    config_reader.write("\ufeffnnodes = 1\nmax_restarts = 4")
    assert config_reader.read().settings.max_restarts == 4


def test_file_that_is_not_utf8_is_rejected(config_reader):
    (config_reader.folder / "elastic.toml").write_bytes(b"role = '\xff'")
    assert "UTF-8" in next(iter(config_reader.problems().values()))


def test_nearest_file_is_used_and_elastic_toml_preferred(config_reader):
    config_reader.write("[tool.elastic]\nrole = 'shared'", "pyproject.toml")
    assert config_reader.read().settings.role == "shared"
    assert config_reader.read().origins["role"] == "pyproject.toml: tool.elastic.role"
    config_reader.write("role = 'own'")
    assert config_reader.read().settings.role == "own"
    (config_reader.folder.parent / "elastic.toml").write_text("role = 'above'")
    (config_reader.folder / "elastic.toml").unlink()
    (config_reader.folder / "pyproject.toml").write_text("[project]\nname = 'elastic-user'")
    assert config_reader.read().settings.role == "above"


def test_broken_pyproject_without_our_table_is_skipped(config_reader):
    config_reader.write("dependencies = [elastic-core", "pyproject.toml")
    assert config_reader.read().config_file == config_reader.folder.parent / "elastic.toml"
    path = config_reader.write("[tool.elastic]\nrole = ", "pyproject.toml")
    assert "not valid TOML" in config_reader.problems()[str(path)]


def test_tool_elastic_that_is_not_a_table_is_rejected(config_reader):
    path = config_reader.write("tool.elastic = 3", "pyproject.toml")
    assert "expected [tool.elastic] to be a table" in config_reader.problems()[str(path)]


def test_named_file_is_the_only_one_read(config_reader):
    config_reader.write(FILE)
    config_reader.write("role = 'other'", "conf/other.toml")
    assert config_reader.read("--config conf/other.toml train.py").settings.role == "other"
    assert config_reader.read("train.py", {"ELASTIC_CONFIG": "conf/other.toml"}).settings.role == "other"
    named = config_reader.read("--config elastic.toml train.py", {"ELASTIC_CONFIG": "conf/other.toml"})
    assert named.settings.role == "file"


def test_missing_named_file_is_reported(config_reader):
    assert "No such file" in config_reader.problems("--config nowhere.toml train.py")["--config"]
    assert "No such file" in config_reader.problems("train.py", {"ELASTIC_CONFIG": "nowhere.toml"})["ELASTIC_CONFIG"]


def test_named_pyproject_without_our_table_is_an_error(config_reader):
    config_reader.write("[tool.other]", "pyproject.toml")
    assert "[tool.elastic]" in config_reader.problems("--config pyproject.toml train.py")["--config"]


def test_problems_of_all_sources_are_reported_together(config_reader):
    config_reader.write("nnode = 1")
    problems = config_reader.problems("--max-restarts x missing.py", {"ELASTIC_ROLES": "a", "PET_TEE": "9"})
    assert set(problems) == {"--max-restarts", "ELASTIC_ROLES", "PET_TEE", "elastic.toml: nnode", "script"}


def test_folder_as_config_file_is_rejected(config_reader, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    assert "Is a directory" in config_reader.problems(f"--config {other} train.py")["--config"]
    assert config_reader.read("train.py", {"ELASTIC_CONFIG": str(config_reader.write(FILE))}).settings.role == "file"


def test_search_ends_at_the_home_folder(config_reader):
    above = config_reader.folder.parent / "elastic.toml"
    assert config_reader.read("train.py", {"HOME": "/nowhere"}).config_file == above
    assert config_reader.read("train.py", {"HOME": str(config_reader.folder.parent)}).config_file == above
    assert config_reader.read("train.py", {"HOME": str(config_reader.folder)}).config_file is None


@pytest.mark.parametrize("mode", [0o2775, 0o1777])
def test_file_in_a_group_writable_folder_is_used(config_reader, mode):
    """Such folders are common on clusters. Only the file's owner matters."""
    path = config_reader.write("role = 'ours'")
    path.chmod(0o664)
    config_reader.folder.chmod(mode)
    if os.geteuid() == 0:
        os.chown(config_reader.folder, NOBODY, -1)
    reading = config_reader.read()
    assert (reading.settings.role, reading.left_out) == ("ours", [])
    assert config_reader.read(f"--config {path} train.py").settings.role == "ours"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change owners")
@pytest.mark.parametrize("of", ["file", "link"])
def test_file_of_another_user_is_skipped_for_the_next_one(config_reader, of):
    path = config_reader.write("role = 'theirs'")
    if of == "link":
        path.rename(config_reader.folder / "mine.toml")
        path.symlink_to("mine.toml")
    os.chown(path, NOBODY, -1, follow_symlinks=False)
    reading = config_reader.read()
    assert (reading.settings.role, reading.config_file) == ("default", config_reader.folder.parent / "elastic.toml")
    (problem,) = reading.left_out
    assert problem.origin == str(path)
    assert f"ignored because {path} belongs to user " in problem.message
    assert config_reader.read(f"--config {path} train.py").settings.role == "theirs"


def test_world_writable_file_is_ignored(config_reader):
    path = config_reader.write("role = 'anyone'")
    path.chmod(0o666)
    reading = config_reader.read()
    assert reading.settings.role == "default"
    assert [problem.message for problem in reading.left_out if f"{path} is writable by everyone" in problem.message]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change owners")
def test_ignored_file_is_reported_with_other_problems(config_reader):
    path = config_reader.write("nnodes = '2'")
    os.chown(path, NOBODY, -1)
    assert set(config_reader.problems("--nnodes=x train.py")) == {"--nnodes", str(path)}
