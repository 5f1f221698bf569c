"""Kubernetes accepts the manifest, and its container does what it should."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from elastic_core.errors import ConfigurationError, ExitCode

pytestmark = pytest.mark.integration

yaml = pytest.importorskip("yaml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")
parameters = pytest.importorskip("elastic_etcd.parameters", reason="the tests on other Pythons run without it")

MANIFEST = Path(__file__).parents[2] / "examples" / "kubernetes" / "job.yaml"
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "kubernetes.md"
SERVICE, POLICY, JOB = yaml.safe_load_all(MANIFEST.read_text())
TEMPLATE = JOB["spec"]["template"]["spec"]
(CONTAINER,) = TEMPLATE["containers"]
FIELDS = {"metadata.name": "trainer-2-x7k2p", "metadata.labels['batch.kubernetes.io/controller-uid']": "e2f5-uid"}
LIMIT_S = 60
EXPLAINS = f"""\
#!/bin/sh
shift
exec {sys.executable} -m elastic_core explain --json "$@"
"""
RUNS = """\
#!/bin/sh
echo "$@" >> commands.txt
case $1 in
  run) trap 'exit 143' TERM; echo runs; while [ ! -e drained ]; do sleep 0.05; done; exit "$RUN_EXITS" ;;
  drain) [ -z "$DRAINS" ] || touch drained; exit "$DRAIN_EXITS" ;;
esac
"""


class Pod:
    """Runs the container as the kubelet does, with /tmp and `elastic` in a separate folder."""

    def __init__(self, folder, elastic):
        self.folder = folder
        (folder / "elastic.toml").touch()
        (folder / "elastic").write_text(elastic)
        (folder / "elastic").chmod(0o755)
        self.environ = {"PATH": f"{folder}:{os.environ['PATH']}", "JOB_COMPLETION_INDEX": "2"}
        for entry in CONTAINER["env"]:
            field = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            self.environ[entry["name"]] = entry["value"] if field is None else FIELDS[field]

    def start(self, command, **environ):
        command = [word.replace("/tmp/", f"{self.folder}/") for word in command]
        environ = {**self.environ, **environ}
        return subprocess.Popen(command, cwd=self.folder, env=environ, stdout=subprocess.PIPE, text=True)

    def main(self, **environ):
        return self.start([*CONTAINER["command"], *CONTAINER["args"]], **environ)

    def pre_stop(self, **environ):
        return self.start(CONTAINER["lifecycle"]["preStop"]["exec"]["command"], **environ)

    def commands(self):
        return (self.folder / "commands.txt").read_text().splitlines()


def probe(name):
    return CONTAINER[name]["httpGet"]


@pytest.fixture(scope="module")
def explained(tmp_path_factory):
    """The output of `elastic explain` in the container."""
    folder = tmp_path_factory.mktemp("pod")
    (folder / "train.py").touch()
    with Pod(folder, EXPLAINS).main() as main:
        output, _ = main.communicate(timeout=LIMIT_S)
    assert main.returncode == 0
    return json.loads(output)


# The newest part of it, the pod failure policy, is stable since 1.31.
@pytest.mark.parametrize("version", ["1.31", kubernetes_validate.latest_version()])
@pytest.mark.parametrize("document", [SERVICE, POLICY, JOB], ids=["service", "policy", "job"])
def test_manifest_is_valid(document, version):
    kubernetes_validate.validate(document, version, strict=True)


def test_container_reads_its_rank_and_job(explained):
    settings = explained["settings"]
    assert settings["node_rank"] == {"value": 2, "unit": "", "origin": "JOB_COMPLETION_INDEX"}
    assert settings["nnodes"] == {"value": "3:4", "unit": "", "origin": "ELASTIC_NNODES"}
    assert settings["rdzv_id"] == {"value": "e2f5-uid", "unit": "", "origin": "ELASTIC_RDZV_ID"}
    assert settings["node_id"]["value"] == "trainer-2-x7k2p"
    assert settings["rdzv_backend"]["value"] == "etcd"
    assert settings["rdzv_conf"]["value"] == {"serve": "true"}
    assert (explained["script"], explained["script_args"]) == ("train.py", [])


def test_each_node_has_a_pod(explained):
    spec = JOB["spec"]
    assert spec["completionMode"] == "Indexed"
    assert explained["settings"]["nnodes"]["value"].split(":")[1] == str(spec["completions"])
    assert spec["completions"] == spec["parallelism"]


def test_pods_meet_at_three_names_before_they_are_ready(explained):
    """Each of the three runs a member of the etcd cluster, so any one of them may fail."""
    job, service = JOB["metadata"]["name"], SERVICE["metadata"]["name"]
    places = parameters.parse_endpoints(explained["settings"]["rdzv_endpoint"]["value"])
    assert [place.host for place in places] == [f"{job}-{index}.{service}" for index in range(3)]
    assert TEMPLATE["subdomain"] == service
    assert SERVICE["spec"]["selector"] == {"batch.kubernetes.io/job-name": job}
    assert (SERVICE["spec"]["clusterIP"], SERVICE["spec"]["publishNotReadyAddresses"]) == ("None", True)
    (port,) = {place.port for place in places}
    assert {port, port + 1} <= {entry["port"] for entry in SERVICE["spec"]["ports"]}
    assert {port, port + 1} <= {entry["containerPort"] for entry in CONTAINER["ports"]}


def test_jobset_endpoint_on_the_page_is_accepted():
    (places,) = re.findall("ELASTIC_RDZV_ENDPOINT: (.+)", PAGE.read_text())
    assert [place.host for place in parameters.parse_endpoints(places)] == [
        f"trainer-nodes-0-{index}.trainer" for index in range(3)
    ]


@pytest.mark.parametrize(("backend", "endpoint", "nodes"), [("static", 29500, "4:4"), ("c10d", 29400, "3:4")])
def test_kubeflow_variables_configure_a_job(backend, endpoint, nodes, tmp_path):
    lines = re.findall(r"^    (elastic run [^\\\n]*(?:\\\n.*)?)", PAGE.read_text(), re.M)
    line = next(line for line in lines if ("c10d" in line) == (backend == "c10d"))
    variables = {"NNODES": "4", "NPROC_PER_NODE": "1", "NODE_RANK": "2", "MASTER_ADDR": "tj-node-0-0.tj"}
    variables |= {"MASTER_PORT": "29500"}
    (tmp_path / "elastic.toml").touch()
    command = line.replace("elastic run", f"{sys.executable} -m elastic_core explain --json")
    environ = {"PATH": os.environ["PATH"], **{f"PET_{name}": value for name, value in variables.items()}}
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environ, capture_output=True, timeout=LIMIT_S)
    settings = json.loads(done.stdout)["settings"]
    shown = [settings[name]["value"] for name in ("rdzv_backend", "rdzv_endpoint", "nnodes", "node_rank")]
    assert shown == [backend, f"tj-node-0-0.tj:{endpoint}", nodes, 2]


def test_probes_match_the_health_endpoint(explained):
    assert explained["settings"]["health"]["value"] == "http"
    assert explained["settings"]["health_conf"]["value"]["host"] == "0.0.0.0"
    ports = {entry["name"]: entry["containerPort"] for entry in CONTAINER["ports"]}
    for name, path in {"livenessProbe": "/livez", "readinessProbe": "/readyz"}.items():
        assert probe(name)["path"] == path
        assert ports[probe(name)["port"]] == explained["settings"]["health_port"]["value"]


def test_only_own_pods_and_prometheus_may_connect():
    assert POLICY["spec"]["podSelector"]["matchLabels"] == SERVICE["spec"]["selector"]
    assert POLICY["spec"]["policyTypes"] == ["Ingress"]
    own, prometheus = POLICY["spec"]["ingress"]
    assert own == {"from": [{"podSelector": POLICY["spec"]["podSelector"]}]}
    assert prometheus["ports"] == [{"port": "health"}]
    (source,) = prometheus["from"]
    assert set(source) == {"namespaceSelector", "podSelector"}  # both must match


def test_container_is_restricted():
    """The restricted profile of Pod Security, and a read-only file system."""
    pod, own = TEMPLATE["securityContext"], CONTAINER["securityContext"]
    assert (pod["runAsNonRoot"], pod["seccompProfile"]["type"]) == (True, "RuntimeDefault")
    assert own == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert TEMPLATE["automountServiceAccountToken"] is False
    assert {volume["name"] for volume in TEMPLATE["volumes"]} == {mount["name"] for mount in CONTAINER["volumeMounts"]}


def secret():
    """The volume with the Secret, and where it is mounted."""
    (volume,) = (volume for volume in TEMPLATE["volumes"] if "secret" in volume)
    (mount,) = (mount for mount in CONTAINER["volumeMounts"] if mount["name"] == volume["name"])
    return volume["secret"], mount["mountPath"]


def as_user(user, group, groups, call):
    """The result of a call as another user."""

    def child():
        os.setgroups(groups)
        os.setgid(group)
        os.setuid(user)
        sending.send(call())

    receiving, sending = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(LIMIT_S)
    assert process.exitcode == 0
    return receiving.recv()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_only_the_pod_reads_the_token(explained):
    """The file has the owner and group that the kubelet gives it: root, and the pod's group."""
    options = pytest.importorskip("elastic_http_health.options")
    conf = explained["settings"]["health_conf"]["value"]
    pod, (volume, path) = TEMPLATE["securityContext"], secret()
    with tempfile.TemporaryDirectory() as folder:
        token = Path(conf["token_file"].replace(path, folder))
        token.write_text("s3cret")
        os.chown(token, 0, pod["fsGroup"])
        token.chmod(volume["defaultMode"] | 0o440)
        Path(folder).chmod(0o755)

        def read():
            try:
                found = options.read_options({**conf, "token_file": str(token), "connections": 64, "rate": 200.0})
            except ConfigurationError as error:
                return str(error)
            return found.bearer(), list(found.exposed(conf["host"]))

        assert as_user(pod["runAsUser"], pod["runAsGroup"], [pod["fsGroup"]], read) == ("s3cret", [])
        assert "Permission denied" in as_user(pod["runAsUser"] + 1, pod["runAsGroup"] + 1, [], read)


def test_run_and_drain_have_the_rendezvous_secret(explained):
    found = explained["settings"]["rdzv_secret_file"]
    assert found["origin"] == "ELASTIC_RDZV_SECRET_FILE"
    assert found["value"] == f"{secret()[1]}/rdzv"


def test_stop_timeouts_fit_the_pods_grace_period(explained):
    settings = explained["settings"]
    stopping = settings["shutdown_timeout"]["value"] + settings["kill_timeout"]["value"]
    hook = CONTAINER["lifecycle"]["preStop"]["exec"]["command"][-1]
    drain = float(re.search(r"--timeout=(\d+)", hook)[1])
    assert stopping < drain < TEMPLATE["terminationGracePeriodSeconds"]


def test_incurable_failure_ends_the_job():
    lost, left, hopeless = JOB["spec"]["podFailurePolicy"]["rules"]
    assert [pattern["type"] for pattern in lost["onPodConditions"]] == ["DisruptionTarget"]
    assert lost["action"] == left["action"] == "Ignore"
    assert left["onExitCodes"]["values"] == [ExitCode.PREEMPTED]
    assert hopeless["onExitCodes"]["containerName"] == CONTAINER["name"]
    assert hopeless["onExitCodes"]["values"] == [ExitCode.WORKER_FAILED, ExitCode.BAD_CONFIGURATION]


@pytest.mark.parametrize("code", [0, 1, 4])
def test_exit_code_is_that_of_the_agent(tmp_path, code):
    (tmp_path / "drained").touch()  # the stand-in for `elastic run` ends immediately
    with Pod(tmp_path, RUNS).main(RUN_EXITS=str(code)) as main:
        assert main.wait(LIMIT_S) == code


@pytest.mark.parametrize(
    ("drains", "code"),
    [("yes", 0), ("yes", 4), ("", 4), ("", 8)],
    ids=["drained", "drained, with the store", "no store", "not in a round yet"],
)
def test_evicted_pod_is_drained_and_restarted(tmp_path, drains, code):
    pod = Pod(tmp_path, RUNS)
    with pod.main(RUN_EXITS="0") as main:
        assert main.stdout.readline() == "runs\n"
        with pod.pre_stop(DRAINS=drains, DRAIN_EXITS=str(code)) as hook:
            assert hook.wait(LIMIT_S) == 0
        assert main.wait(LIMIT_S) == 143
    assert pod.commands()[1:] == ["drain --timeout=80 trainer-2-x7k2p"]


def test_pod_evicted_before_its_agent_starts_exits(tmp_path):
    """The hook starts before the container's agent, and runs alongside it."""
    pod = Pod(tmp_path, RUNS)
    with pod.pre_stop(DRAINS="", DRAIN_EXITS="8") as hook:
        deadline = time.monotonic() + LIMIT_S
        while not (tmp_path / "leaving").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        with pod.main(RUN_EXITS="0") as main:
            assert hook.wait(LIMIT_S) == 0
            assert main.wait(LIMIT_S) == 143
