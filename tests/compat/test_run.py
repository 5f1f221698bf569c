"""The functions of torch.distributed.run that tools call."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from elastic_core.compat import run
from elastic_core.errors import ChildFailedError, ConfigurationError

pytestmark = pytest.mark.integration


@pytest.fixture
def worker(tmp_path):
    path = tmp_path / "worker.py"
    path.write_text("import os, sys; open(f'{sys.argv[1]}/{os.environ[\"RANK\"]}', 'w'); sys.exit(int(sys.argv[2]))")
    return str(path)


@pytest.mark.torch
def test_parser_accepts_torchs_flags():
    from torch.distributed.run import get_args_parser

    theirs, ours = (
        parser.parse_args(["script.py", "--its-own"]) for parser in (get_args_parser(), run.get_args_parser())
    )
    assert vars(theirs).keys() <= vars(ours).keys()
    assert (ours.training_script, ours.training_script_args) == ("script.py", ["--its-own"])


def test_flags_are_accepted_in_both_spellings():
    args = run.parse_args(["--nproc-per-node=2", "--max_restarts", "3", "-r3", "-m", "--rdzv-conf=a=1", "script"])
    assert (args.nproc_per_node, args.max_restarts, args.redirects, args.module) == ("2", "3", "3", True)
    assert args.rdzv_conf == ["a=1"]
    assert run.parse_args(["script"]).max_restarts == "0"


def test_comma_in_a_filter_set_by_a_tool_is_kept(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("print('loss, acc')\nprint('loss')")
    args = run.parse_args(["--standalone", f"--log-dir={tmp_path / 'log'}", str(script)])
    args.duplicate_stdout_filters = ["loss, acc"]
    run.run(args)
    assert (tmp_path / "log/latest/filtered.out").read_text() == "[default0]:loss, acc\n"


def test_values_set_by_a_tool_apply(worker, tmp_path):
    """Tools such as accelerate parse an empty command line and then set values of any type."""
    args, _ = run.get_args_parser().parse_known_args(["script.py"])
    args.nnodes, args.nproc_per_node, args.rdzv_backend, args.standalone = "1", 2, "static", False
    args.master_port, args.monitor_interval, args.tee = None, 0.1, "0"
    args.training_script, args.training_script_args = worker, [str(tmp_path), "0"]
    run.run(args)
    assert {path.name for path in tmp_path.iterdir()} == {"worker.py", "0", "1"}


def test_failure_is_raised(worker, tmp_path):
    with pytest.raises(ChildFailedError, match="exit code 3"):
        run.run(run.parse_args(["--standalone", worker, str(tmp_path), "3"]))


def test_invalid_configuration_is_raised(worker):
    with pytest.raises(ConfigurationError, match=r"--nnodes: .*'many'"):
        run.run(run.parse_args(["--nnodes=many", worker]))


def test_flag_with_the_default_value_overrides_a_variable(worker, tmp_path, monkeypatch):
    monkeypatch.setenv("PET_NPROC_PER_NODE", "2")
    run.run(run.parse_args(["--standalone", "--nproc-per-node=1", worker, str(tmp_path), "0"]))
    assert {path.name for path in tmp_path.iterdir()} == {"worker.py", "0"}


def test_main_returns_after_success(worker, tmp_path):
    run.main(["--standalone", worker, str(tmp_path), "0"])


def test_main_raises_like_torchs(worker, tmp_path, monkeypatch):
    for argv in (["--standalone", worker, str(tmp_path), "3"], None):
        monkeypatch.setattr(sys, "argv", ["elastic-torchrun", "--standalone", worker, str(tmp_path), "3"])
        with pytest.raises(ChildFailedError, match="exit code 3"):
            run.main(argv)
    with pytest.raises(SystemExit) as left:
        run.main(["--help"])
    assert not left.value.code


def test_result_file_and_log_equal_those_of_elastic_run(worker, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ELASTIC_RESULT_FILE", str(tmp_path / "result.json"))
    monkeypatch.setenv("ELASTIC_LOG_FORMAT", "json")
    with pytest.raises(ChildFailedError):
        run.run(run.parse_args(["--standalone", worker, str(tmp_path), "3"]))
    told = json.loads((tmp_path / "result.json").read_text())
    assert (told["exit_code"], told["error"]["type"]) == (1, "ChildFailedError")
    assert "run started" in [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]


@pytest.mark.torch
def test_torch_distributed_launch_passes_the_local_rank(tmp_path):
    """Runs in another process, in which our names replace torch's."""
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.argv[1:])")
    launch = tmp_path / "launch.py"
    launch.write_text(
        "import sys\nfrom torch.distributed.launch import main\n"
        "main(['--standalone', *sys.argv[1:]])\nmain(['--standalone', '--use-env', *sys.argv[1:]])\n"
    )
    command = [sys.executable, "-m", "elastic_core.compat.torch", str(launch), str(script), "x"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    assert ran.stdout.splitlines() == ["['--local-rank=0', 'x']", "['x']"]
