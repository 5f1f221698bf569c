"""`elastic doctor` over torch's store: with a separate store and a second doctor, and without a store."""

from __future__ import annotations

import json
import signal

import pytest
from job_of_nodes import free_port

pytestmark = pytest.mark.torch


@pytest.fixture
def endpoint():
    return f"127.0.0.1:{free_port()}"


def levels(done):
    return {item["check"]: item["level"] for item in json.loads(done.out)["findings"]}


def test_two_doctors_find_each_other(elastic, endpoint):
    flags = ("--nnodes=2", "--rdzv-endpoint", endpoint, "--rdzv-id=job", "--peers=2", "--json")
    server = elastic.fork("serve", "--rdzv-endpoint", endpoint, "--log-format=json")
    assert json.loads(server.stderr.readline())["event"] == "store served"
    both = [elastic.fork("doctor", *flags) for _ in range(2)]
    for done in [elastic.finish(doctor, 120) for doctor in both]:
        assert done.code == 0, done.out + done.err
        found = levels(done)
        assert {found[check] for check in ("backend", "torch", "connection", "store", "run-id")} == {"ok"}
        assert {found[check] for check in ("peers", "peer-versions")} == {"ok"}
        assert found["name"] == "warning", "no other machine reaches loopback"
        details = {item["check"]: item["message"] for item in json.loads(done.out)["findings"]}
        assert all(f":{doctor.pid}" in details["peers"] for doctor in both)
    server.send_signal(signal.SIGTERM)
    assert elastic.finish(server).code == 0


@pytest.mark.parametrize("same", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_two_doctors_compare_secrets_without_showing_them(elastic, endpoint, tmp_path, same):
    secrets = [b"0123456789abcdef", b"0123456789abcdef" if same else b"fedcba9876543210"]
    for number, secret in enumerate(secrets):
        (tmp_path / f"secret{number}").touch(0o600)
        (tmp_path / f"secret{number}").write_bytes(secret)
    flags = ("--nnodes=2", "--rdzv-endpoint", endpoint, "--rdzv-id=job", "--peers=2", "--peers-timeout=15", "--json")
    server = elastic.fork("serve", "--rdzv-endpoint", endpoint, "--log-format=json")
    assert json.loads(server.stderr.readline())["event"] == "store served"
    both = [elastic.fork("doctor", *flags, f"--rdzv-secret-file={tmp_path / f'secret{number}'}") for number in range(2)]
    for done in [elastic.finish(doctor, 120) for doctor in both]:
        found = levels(done)
        assert found["secret"] == ("ok" if same else "fault"), done.out + done.err
        assert found["peers"] == ("ok" if same else "fault")
        assert not any(secret.decode() in done.out + done.err for secret in secrets)
    server.send_signal(signal.SIGTERM)
    assert elastic.finish(server).code == 0


def test_missing_store_is_a_fault_only_when_expected(elastic, endpoint):
    flags = ("--rdzv-endpoint", endpoint, elastic.script("train.py", ""), "--lr=3")
    plain, expecting = (
        elastic.fork("doctor", *words, *flags, ELASTIC_NNODES="2", ELASTIC_RDZV_ID="job")
        for words in ((), ("--expect-store", "--json"))
    )
    done = elastic.finish(plain, 90)
    assert done.code == 0, done.out + done.err
    assert f"nothing listens at {endpoint} yet\n" in done.out
    assert "-> this machine would host the store: start elastic run or elastic serve here\n" in done.out
    done = elastic.finish(expecting, 90)
    assert done.code == 4, done.out + done.err
    assert levels(done)["store"] == "fault"


@pytest.mark.parametrize("place", [pytest.param((), marks=pytest.mark.nightly), ("--rdzv-endpoint=localhost:0",)])
def test_single_node_checks_no_store(elastic, place):
    done = elastic.finish(elastic.fork("doctor", "--rdzv-backend=c10d", *place, "--json"), 90)
    assert done.code == 0, done.out + done.err
    found = levels(done)
    assert found["backend"] == "ok"
    assert not {"store", "connection", "name"} & set(found)
    expecting = elastic.finish(elastic.fork("doctor", "--rdzv-backend=tcp", *place, "--expect-store", "--json"), 90)
    assert expecting.code == 4, expecting.out + expecting.err
    assert levels(expecting)["store"] == "fault"
