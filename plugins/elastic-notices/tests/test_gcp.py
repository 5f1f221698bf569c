"""Preemption and host maintenance on GCP, against a mock metadata server."""

from __future__ import annotations

import time

import pytest
from elastic_notices.gcp import Vm, decode
from elastic_notices.web import Web
from elastic_testing import Background, NoticeContract, eventually
from mocks import Fixed, Gcp

from elastic_core.plugin import Notice, SystemClock

NOW = 1_700_000_000.0
TERMINATE = "TERMINATE_ON_HOST_MAINTENANCE"


@pytest.mark.parametrize(
    ("preempted", "event", "has_gpu", "left"),
    [
        ("FALSE", "NONE", True, None),
        ("FALSE", "MIGRATE_ON_HOST_MAINTENANCE", False, None),
        ("TRUE", "NONE", True, 30),
        ("TRUE", TERMINATE, True, 30),
        ("FALSE", TERMINATE, True, 3600),
        ("FALSE", TERMINATE, False, 60),
    ],
)
def test_documented_time_is_left_after_a_change(preempted, event, has_gpu, left):
    notice = decode(preempted, event, NOW, has_gpu)
    assert (notice and notice.at) == (left and NOW + left)


def test_change_at_an_unknown_time_takes_effect_at_once():
    assert decode("TRUE", "NONE", None, True) == Notice("GCP preempts this VM")
    assert decode("FALSE", TERMINATE, None, True) == Notice("GCP stops this VM for host maintenance")


@pytest.mark.parametrize(("preempted", "event"), [("", "NONE"), ("true", "NONE"), ("FALSE", "SOON")])
def test_unknown_value_is_an_error(preempted, event):
    with pytest.raises(ValueError, match="undocumented"):
        decode(preempted, event, NOW, True)


@pytest.fixture
def gcp():
    return Gcp()


@pytest.mark.integration
class TestMaintenance(NoticeContract):
    @pytest.fixture
    def source(self, start, serve, gcp):
        url = serve(gcp)
        return lambda pause: start("gcp", pause, notice_endpoint=url, notice_interval=1.0)

    @pytest.fixture
    def announce(self, gcp):
        return lambda: gcp.set("maintenance-event", TERMINATE)

    @pytest.fixture
    def withdraw(self, gcp):
        return lambda: gcp.set("maintenance-event", "NONE")


@pytest.mark.integration
def test_preemption_ends_a_long_poll(gcp, serve, start):
    waiting = Background(lambda: next(start("gcp", notice_endpoint=serve(gcp), notice_interval=60.0)), 90)
    eventually(lambda: gcp.held == 2, what="the second request, which the server holds")
    before = time.time()
    gcp.set("preempted", "TRUE")
    notice = waiting.result()
    assert notice.reason == "GCP preempts this VM"
    assert before + 30 <= notice.at <= time.time() + 30


@pytest.mark.integration
def test_maintenance_counts_from_its_first_sight(gcp, serve):
    vm = Vm(Web(serve(gcp), "--notice-endpoint"), SystemClock(), True, 1.0)
    assert vm.ask() is None
    gcp.set("maintenance-event", TERMINATE)
    first = vm.ask()
    assert time.time() + 3500 < first.at <= time.time() + 3600
    assert vm.ask() == first


@pytest.mark.integration
def test_host_is_read_from_the_variable(gcp, serve, start, monkeypatch, following):
    monkeypatch.setenv("GCE_METADATA_HOST", serve(gcp).removeprefix("http://"))
    gcp.set("preempted", "TRUE")
    assert following(start("gcp")) == Notice("GCP preempts this VM")


@pytest.mark.integration
@pytest.mark.parametrize("headers", [{}, {"Metadata-Flavor": "Other"}])
def test_answer_without_the_flavor_is_an_error(serve, start, log, headers):
    mock = Fixed(200, "TRUE", **headers)
    assert list(start("gcp", lambda seconds: mock.asked < 3, notice_endpoint=serve(mock))) == []
    assert log.reasons == ["the response does not come from a GCP metadata server; polling continues"]
