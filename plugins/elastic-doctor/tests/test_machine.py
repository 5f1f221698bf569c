"""Findings about this machine and its installed packages."""

from __future__ import annotations

import os
import resource
import sys

import pytest
from elastic_doctor.checks import free_memory, judged_kernel, judged_processes, judged_shared_memory
from elastic_doctor.finding import Check, exit_code_of, fault, level_of, note, ok, warning
from elastic_doctor.machine import (
    Torch,
    judged_choices,
    judged_files,
    judged_plugins,
    judged_torch,
    judged_versions,
    probed_torch,
    read_answer,
    versions_of,
)
from elastic_testing import HealthCheckContract

from elastic_core import builtin
from elastic_core.compose.plan import plan_of
from elastic_core.config import Reading, settings_from
from elastic_core.errors import ExitCode
from elastic_core.hooks.discovery import Candidate, Source
from elastic_core.hooks.manager import PluginManager
from elastic_core.plugin import CheckMoment, RendezvousBackendRecord, hookimpl


def levels(findings):
    return [(level_of(item), item.name) for item in findings]


def test_exit_code_names_the_most_basic_fault():
    fine = [ok(Check.NAME, "x"), note(Check.STORE, "x"), warning(Check.TORCH, "x", "y")]
    store, peers, here = (fault(check, "x", "y") for check in (Check.STORE, Check.PEERS, Check.PORT))
    assert exit_code_of(fine) == ExitCode.SUCCESS
    assert exit_code_of([*fine, peers]) == ExitCode.RENDEZVOUS_TIMEOUT
    assert exit_code_of([*fine, peers, store]) == ExitCode.STORE_UNREACHABLE
    assert exit_code_of([*fine, peers, store, here]) == ExitCode.BAD_CONFIGURATION


def test_fit_machine_is_ok():
    found = [judged_kernel("Linux", "6.1.0-9", 8), judged_processes(9999, 8), judged_shared_memory(1 << 30)]
    assert [(item.level.value, item.remedy) for item in found] == [("ok", "")] * 3
    assert judged_files(1024, 4096, 4).message == "open files: 1024, can be raised to 4096; this run needs 272"
    assert judged_processes(None, 8).level.value == "ok"


@pytest.mark.parametrize(
    ("found", "level", "remedy"),
    [
        (judged_kernel("Darwin", "23.1", 8), "warning", "made for Linux"),
        (judged_kernel("Linux", "4.18.0-553.el8", 8), "ok", "Linux 5.3"),
        (judged_processes(500, 8), "warning", "ulimit -u 1280"),
        (judged_shared_memory(64 << 20), "warning", "--shm-size"),
        (judged_shared_memory(None), "warning", "tmpfs"),
    ],
)
def test_unfit_machine_gets_advice(found, level, remedy):
    assert found.level.value == level
    assert remedy in found.remedy


def test_store_host_needs_more_files():
    assert level_of(judged_files(256, 1000, 0)) == "ok"
    assert judged_files(256, 1000, 1000).remedy.startswith("on the store's host, run ulimit -Hn 4256")
    unlimited = resource.RLIM_INFINITY
    message = judged_files(unlimited, unlimited, 10**6).message
    assert message.startswith("open files: unlimited, can be raised to unlimited")


@pytest.mark.integration
class TestOwnChecks(HealthCheckContract):
    @pytest.fixture(params=["python", "kernel", "process-limit", "shared-memory", "torch", "store"])
    def check(self, request, tmp_path, monkeypatch):
        (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        settings = settings_from({"nnodes": "2", "rdzv_endpoint": "127.0.0.1:1", "rdzv_id": "job"})
        checks = plan_of(Reading(settings), PluginManager.load({})).health_checks(CheckMoment.BEFORE_RUN)
        (check,) = [item for item in checks if (item.plugin, item.name) == ("elastic-doctor", request.param)]
        return check.make


def test_shared_memory_is_measured(tmp_path):
    assert free_memory(str(tmp_path)) > 0
    assert free_memory(str(tmp_path / "none")) is None


@pytest.mark.parametrize(
    ("torch", "wanted", "expected"),
    [
        (Torch(), 1, [("note", "torch")]),
        (Torch(problem="ImportError: libcuda"), 1, [("warning", "torch")]),
        (Torch(problem="ImportError: libcuda"), "auto", [("fault", "torch")]),
        (Torch(problem="ImportError: libcuda"), "cpu", [("warning", "torch")]),
        (Torch("2.13", ("gloo",)), 2, [("ok", "torch"), ("ok", "accelerators")]),
        (Torch("2.13", ("gloo",)), "auto", [("ok", "torch"), ("ok", "accelerators")]),
        (Torch("2.13", ("gloo",)), "gpu", [("ok", "torch"), ("fault", "accelerators")]),
        (Torch("2.13", ()), 2, [("warning", "torch"), ("ok", "accelerators")]),
        (Torch("2.13", ("gloo",), 8), 8, [("warning", "torch"), ("ok", "accelerators")]),
        (Torch("2.13", ("gloo", "nccl"), 8), "gpu", [("ok", "torch"), ("ok", "accelerators")]),
        (Torch("2.13", ("gloo", "nccl"), 4), 8, [("ok", "torch"), ("warning", "accelerators")]),
    ],
)
def test_torch_and_accelerators_are_judged(torch, wanted, expected):
    found = list(judged_torch(torch, wanted))
    assert levels(found) == expected
    assert all(item.remedy for item in found if level_of(item) != "ok")


def test_torch_probe_output_is_parsed():
    good = '{"version": "2.13.0", "backends": ["gloo", "mpi"], "devices": 2}'
    assert read_answer(0, f"a driver that talks\n{good}\n", "") == Torch("2.13.0", ("gloo", "mpi"), 2)
    assert read_answer(1, "", "Traceback\nModuleNotFoundError: No module named 'torch'\n") == Torch()
    assert read_answer(1, "", "Traceback\nImportError: libx") == Torch(problem="ImportError: libx")
    assert read_answer(-11, "", "").problem == "exit code -11"
    for nonsense in ("", "4", "{}", '{"version": 1, "backends": []}', '{"version": 1, "backends": 2, "devices": 0}'):
        assert read_answer(0, nonsense, "").problem.startswith("its answer cannot be read")


def program(tmp_path, code):
    path = tmp_path / "python"
    path.write_text(f"#!{sys.executable}\n{code}\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.integration
def test_hung_or_missing_interpreter_is_reported(tmp_path):
    hangs = program(tmp_path, "import sys; sys.stdin.read()")
    assert probed_torch("auto", 0.2, hangs).problem == "no answer within 0.2 s"
    assert "No such file" in probed_torch("auto", 1.0, str(tmp_path / "none")).problem


class Toy:
    @hookimpl
    def elastic_rendezvous_backends(self):
        return [RendezvousBackendRecord("toy", "a test", print)]


def manager(*candidates, blocked=""):
    return PluginManager(candidates, blocked=[blocked] if blocked else [])


def toy(distribution="toys", version="1.0", load=Toy, plugin="toy"):
    return Candidate(Source(distribution, plugin, version), "toys", load)


def test_mixed_distribution_versions_are_a_warning():
    here = manager(toy(), toy("elastic-etcd", "0.1.0", plugin="etcd"))
    assert versions_of(here, "0.1.0") == {"elastic-core": "0.1.0", "elastic-etcd": "0.1.0"}
    assert judged_versions(versions_of(here, "0.1.0")) == ok(Check.VERSIONS, "elastic-core 0.1.0, elastic-etcd 0.1.0")
    torn = judged_versions(versions_of(here, "0.2.0"))
    assert (level_of(torn), torn.remedy) == ("warning", "pip install elastic-etcd==0.2.0, on every node")


def test_failed_blocked_and_conflicting_plugins_are_reported():
    def broken():
        raise ImportError("no module named grpc")

    assert levels(judged_plugins(manager(toy()))) == [("ok", "plugins")]
    (failed,) = judged_plugins(manager(toy(load=broken)))
    assert (level_of(failed), "no module named grpc" in failed.message) == ("warning", True)
    assert "pip uninstall toys" in failed.remedy
    (twice,) = judged_plugins(manager(toy(), toy("more-toys")))
    assert "is provided by" in twice.message
    assert "ELASTIC_DISABLE_PLUGINS=" in twice.remedy
    assert levels(judged_plugins(manager(toy(), blocked="toys"))) == [("note", "plugins")]


def test_selected_plugins_and_options_are_judged():
    core = Candidate(Source("elastic-core", "builtin", "0.1.0"), "elastic_core.builtin", lambda: builtin)

    def judged(candidate, **values):
        return list(judged_choices(plan_of(Reading(settings_from(values)), manager(core, candidate))))

    assert levels(judged(toy(), rdzv_backend="toy")) == [("ok", "backend")]
    (missing,) = judged(toy(), rdzv_backend="etcd", rdzv_endpoint="h")
    assert (level_of(missing), missing.remedy) == ("fault", "pip install elastic-etcd")
    (unknown,) = judged(toy(), rdzv_backend="tyo")
    assert "elastic plugins" in unknown.remedy
    (option,) = judged(toy(), rdzv_backend="toy", rdzv_conf="volume=3")
    assert (level_of(option), "volume" in option.message) == ("fault", True)
    found = judged(toy(), rdzv_backend="toy", watchdog="file", health="http", health_port=1234)
    advice = [item.remedy for item in found if level_of(item) == "fault"]
    assert advice == ["pip install elastic-file-timer", "pip install elastic-http-health"]


def test_problems_name_their_origins():
    origins, tables = {"rank_policy_conf": "ELASTIC_RANK_POLICY_CONF"}, {"etdc": "elastic.toml: rendezvous.etdc"}
    reading = Reading(settings_from({"rank_policy_conf": "x=1"}), origins=origins, tables=tables)
    found = [item.message for item in judged_choices(plan_of(reading, PluginManager.load({})))]
    assert [text.partition(" ")[0] for text in found[:2]] == ["ELASTIC_RANK_POLICY_CONF:", "elastic.toml:"]


def test_warm_start_options_are_accepted():
    values = {"warm_start": True, "worker_starter_conf": {"memory": "1000000"}}
    plan = plan_of(Reading(settings_from(values)), PluginManager.load({}))
    assert levels(judged_choices(plan)) == [("ok", "backend")] * 2


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"rank_policy": "hots"}, "did you mean 'host'"),
        ({"worker_starter": "spwan"}, "did you mean 'spawn'"),
        ({"worker_starter_conf": {"x": "1"}}, "--worker-starter-conf: x: unknown option"),
        ({"event_log_handler": "consle"}, "did you mean 'console'"),
    ],
)
def test_unknown_plugin_names_and_options_are_faults(values, problem):
    findings = judged_choices(plan_of(Reading(settings_from(values)), PluginManager.load({})))
    (wrong,) = (finding for finding in findings if level_of(finding) == "fault")
    assert problem in f"{wrong.message}; {wrong.remedy}"
