import sys

import pytest

from elastic_core.config import NodeRange, settings_from
from elastic_core.errors import ConfigurationError


def rendezvous(reading):
    settings = reading.settings
    return settings.rdzv_backend, settings.rdzv_endpoint, settings.rdzv_id


def test_single_node_needs_no_flags(config_reader):
    reading = config_reader.read()
    assert rendezvous(reading) == ("local", "", "made-up")
    assert reading.origins["rdzv_backend"] == "one node and no endpoint"
    assert reading.origins["rdzv_id"] == "generated for a single node"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--rdzv-id x", ("local", "", "x")),
        ("--rdzv-endpoint h:1", ("c10d", "h:1", "made-up")),
        ("--nnodes 2 --rdzv-endpoint h --rdzv-id j", ("c10d", "h", "j")),
        ("--nnodes 1:2 --rdzv-endpoint localhost --rdzv-id j", ("c10d", "localhost", "j")),
        ("--nnodes 1:2 --rdzv-endpoint [::1]:1 --rdzv-id j", ("c10d", "[::1]:1", "j")),
        ("--rdzv-backend static", ("static", "127.0.0.1:29500", "none")),
    ],
)
def test_backend_endpoint_and_run_id_follow_the_flags(config_reader, line, expected):
    assert rendezvous(config_reader.read(f"{line} train.py")) == expected


@pytest.mark.parametrize(
    ("line", "environ", "origins"),
    [
        ("--standalone --nnodes 2", {}, {"--standalone"}),
        ("", {"PET_NODE_RANK": "1"}, {"PET_NODE_RANK"}),
        ("--nnodes 1:2 --rdzv-id j --master-addr head", {}, {"--rdzv-endpoint"}),
        ("--nnodes 1:2", {}, {"--rdzv-endpoint", "--rdzv-id"}),
        ("--nnodes 2 --rdzv-backend etcd", {}, {"--rdzv-id"}),
        ("--nnodes many --rdzv-backend c10d", {}, {"--nnodes"}),  # and no consequences of it
    ],
)
def test_missing_or_contradictory_setting_is_named(config_reader, line, environ, origins):
    assert set(config_reader.problems(f"{line} train.py", environ)) == origins


def test_standalone_overrides_backend_and_nodes(config_reader):
    line = "--standalone --rdzv-backend c10d --rdzv-endpoint h --rdzv-id x --nnodes 1:4 train.py"
    reading = config_reader.read(line)
    assert rendezvous(reading) == ("local", "", "made-up")
    assert reading.settings.nnodes == NodeRange(1, 1)
    assert reading.origins["rdzv_backend"] == reading.origins["nnodes"] == "--standalone"


def test_standalone_ignores_the_master_address(config_reader):
    reading = config_reader.read("--standalone train.py", {"PET_MASTER_ADDR": "head", "PET_MASTER_PORT": "29500"})
    assert (reading.settings.master_addr, reading.settings.master_port) == (None, None)
    assert reading.origins["master_port"] == "--standalone"


def test_master_address_selects_static(config_reader):
    line = "--nnodes 2 --node-rank 1 --master-addr fd00::1 --master-port 1234 train.py"
    reading = config_reader.read(line)
    assert rendezvous(reading) == ("static", "[fd00::1]:1234", "none")
    assert reading.settings.node_rank == 1
    environ = {"PET_NNODES": "2", "PET_MASTER_ADDR": "head", "PET_NODE_RANK": "0"}
    assert rendezvous(config_reader.read("train.py", environ)) == ("static", "head:29500", "none")


def test_static_rank_defaults_to_0(config_reader):
    reading = config_reader.read("--nnodes 2 --master-addr head train.py")
    assert (reading.settings.node_rank, reading.origins["node_rank"].split(";")[0]) == (0, "torchrun's default")
    elastic = config_reader.read("--nnodes 1:2 --rdzv-endpoint h --rdzv-id j train.py")
    assert elastic.settings.node_rank is None


def test_rank_option_sets_the_node_rank(config_reader):
    line = "--nnodes 3 --rdzv-backend static --master-addr head --rdzv-conf rank=2"
    reading = config_reader.read(f"{line} train.py")
    assert (reading.settings.node_rank, reading.origins["node_rank"]) == (2, "the option rank")
    assert config_reader.read(f"{line} --node-rank 2 train.py").settings.node_rank == 2
    assert set(config_reader.problems(f"{line} --rdzv-conf rank=3 train.py")) == {"--node-rank"}
    assert "rank=2 contradicts" in config_reader.problems(f"{line} --node-rank 1 train.py")["--rdzv-conf"]


@pytest.mark.parametrize("rank", ["abc", "-1", "1.0", "9" * 5000])
def test_invalid_rank_option_is_rejected(rank, config_reader):
    problems = config_reader.problems(
        f"--nnodes 2 --rdzv-backend static --master-addr head --rdzv-conf rank={rank} train.py"
    )
    assert "contradicts --node-rank" in problems["--rdzv-conf"]


def test_rank_option_is_case_insensitive(config_reader):
    line = "--nnodes 2 --rdzv-backend static --master-addr head --rdzv-conf Rank=01 train.py"
    assert config_reader.read(line).settings.node_rank == 1


def test_static_requires_a_fixed_number_of_nodes(config_reader):
    problems = config_reader.problems("--nnodes 1:3 --rdzv-backend static --master-addr head --rdzv-id j train.py")
    assert list(problems) == ["--nnodes"]
    assert "the static backend requires a fixed number of nodes, not 1:3" in problems["--nnodes"]


@pytest.mark.parametrize("line", ["--rdzv-id=", "--rdzv-id= --nnodes 2 --rdzv-endpoint h"])
def test_empty_run_id_is_rejected(config_reader, line):
    problems = config_reader.problems([*line.split(), "train.py"])
    assert problems == {"--rdzv-id": "expected a non-empty string, found ''"}


@pytest.mark.parametrize("flag", ["--rdzv-id", "--node-id"])
def test_name_that_is_not_utf8_is_rejected(config_reader, flag):
    """Python decodes arguments with surrogates, which cannot be sent to other nodes."""
    problems = config_reader.problems([f"{flag}=a\udcff", "train.py"])
    assert problems == {flag: r"expected text in UTF-8, found 'a\udcff'"}


@pytest.mark.parametrize("flag", ["--local-addr", "--node-id", "--role"])
@pytest.mark.parametrize("value", ["10.0.0.1\n10.0.0.2", "x" * 256])
def test_name_that_other_nodes_cannot_read_is_rejected(config_reader, flag, value):
    assert list(config_reader.problems([f"{flag}={value}", "train.py"])) == [flag]


def test_restart_limit_that_other_nodes_cannot_read_is_rejected(config_reader):
    assert list(config_reader.problems(f"--max-restarts {2**63} train.py")) == ["--max-restarts"]


@pytest.mark.parametrize("nodes", ["0", "4:2", "1:"])
def test_invalid_node_range_is_quoted_as_written(config_reader, nodes):
    problems = config_reader.problems(f"--nnodes {nodes} train.py")
    assert problems == {
        "--nnodes": f"expected N or MIN:MAX nodes with 1 <= MIN <= MAX (such as 2 or 1:4), found {nodes!r}"
    }


def test_node_range_up_to_maxsize_is_accepted(config_reader):
    reading = config_reader.read(f"--nnodes 1:{sys.maxsize} --rdzv-endpoint h --rdzv-id job train.py")
    assert reading.settings.nnodes == NodeRange(1, sys.maxsize)


def test_node_id_and_exit_barrier_timeout_are_read(config_reader):
    settings = config_reader.read("--node_id=n7 --exit-barrier-timeout 0 train.py", {"ELASTIC_NODE_ID": "x"}).settings
    assert (settings.node_id, settings.exit_barrier_timeout) == ("n7", 0.0)
    settings = config_reader.read("train.py", {"PET_NODE_ID": "x", "PET_EXIT_BARRIER_TIMEOUT": "1"}).settings
    assert (settings.node_id, settings.exit_barrier_timeout) == (None, 300.0)
    assert set(config_reader.problems("--node-id= --exit-barrier-timeout -1 train.py")) == {
        "--node-id",
        "--exit-barrier-timeout",
    }


def test_health_port_enables_the_http_endpoint(config_reader):
    reading = config_reader.read("--health-port 80 train.py")
    assert (reading.settings.health, reading.origins["health"]) == ("http", "--health-port is set")
    assert config_reader.read("--health-port 80 --health none train.py").settings.health is None
    assert set(config_reader.problems("--health http train.py")) == {"--health-port"}


def test_settings_from_python_are_checked(tmp_path):
    settings = settings_from({"nnodes": NodeRange(1, 1), "tee": "3", "local_addr": None, "log_dir": tmp_path})
    assert settings.rdzv_backend == "local"
    assert settings.rdzv_id
    assert settings.log_dir == tmp_path
    with pytest.raises(ConfigurationError) as caught:
        settings_from({"nnodes": "4:1", "max_restarts": -1, "frob": 1})
    assert {problem.origin for problem in caught.value.problems} == {"nnodes", "max_restarts", "frob"}


def test_generated_run_ids_differ():
    assert settings_from({}).rdzv_id != settings_from({}).rdzv_id


@pytest.mark.parametrize("line", ["--node-rank 1", "--nnodes 2 --node-rank 2 --master-addr head"])
def test_out_of_range_node_rank_is_rejected(config_reader, line):
    problems = config_reader.problems(f"{line} train.py")
    assert set(problems) == {"--node-rank"}
    assert "expected a rank from 0 to" in problems["--node-rank"]
