"""Scheduled events of Azure, against a mock of the instance metadata service."""

from __future__ import annotations

import json
import time
from email.utils import formatdate

import pytest
from elastic_notices.azure import decode, decode_name
from elastic_notices.web import Answer
from elastic_testing import NoticeContract
from mocks import Azure

from elastic_core.plugin import Notice

NOW = 1_700_000_000.0


def event(kind="Preempt", status="Scheduled", after=60, now=NOW, **more):
    return {
        "EventId": "A123BC45-1234-5678-AB90-ABCDEF123456",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": ["trainer_1", "Trainer_3"],
        "EventStatus": status,
        "NotBefore": formatdate(now + after, usegmt=True) if status == "Scheduled" else "",
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        **more,
    }


def decoded(*events, name="trainer_3"):
    return decode(Answer(200, json.dumps({"DocumentIncarnation": 2, "Events": events})), name, NOW)


@pytest.mark.parametrize("kind", ["Preempt", "Terminate", "Reboot", "Redeploy"])
def test_event_of_this_vm_has_its_time(kind):
    assert decoded(event(kind)) == Notice(f"Azure will {kind.lower()} this VM", NOW + 60)


def test_started_event_takes_effect_at_once():
    assert decoded(event("Reboot", "Started")) == Notice("Azure will reboot this VM")


def test_other_events_are_ignored():
    assert decoded() is None
    assert decoded(event("Freeze"), event("Later"), event(Resources=["trainer_1", "trainer_33"])) is None


def test_earliest_event_comes_first():
    assert decoded(event(after=300), event("Reboot", after=50)).at == NOW + 50
    assert decoded(event(after=300), event("Reboot", "Started")).at is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"Events": 3}', '{"Events": [3]}'),
        json.dumps({"Events": [event(Resources="trainer_3")]}),
        json.dumps({"Events": [event(Resources=[3])]}),
        *(
            json.dumps({"Events": [event(NotBefore=time)]})
            for time in (None, 3, "soon", "Mon, 99 Foo 2023 25:61:61 GMT")
        ),
        json.dumps({"Events": [event(NotBefore=f"Tue, 14 Nov 2023 22:{'9' * 400}:20 GMT")]}),
        json.dumps({"Events": [event(after=-5 * 86400)]}),
    ],
)
def test_unknown_answer_is_an_error(text):
    with pytest.raises(ValueError, match=r"\w"):
        decode(Answer(200, text), "trainer_3", NOW)


def test_name_must_not_be_empty():
    assert decode_name(Answer(200, "trainer_3\n")) == "trainer_3"
    for answer in (Answer(200, " "), Answer(404, "trainer_3")):
        with pytest.raises(ValueError, match=r"\w"):
            decode_name(answer)
    with pytest.raises(ValueError, match="410"):
        decode(Answer(410), "trainer_3", NOW)


@pytest.mark.integration
class TestEvents(NoticeContract):
    @pytest.fixture
    def azure(self):
        azure = Azure()
        yield azure
        assert azure.methods <= {"GET"}  # events are not approved

    @pytest.fixture
    def source(self, start, serve, azure):
        url = serve(azure)
        return lambda pause: start("azure", pause, notice_endpoint=url)

    @pytest.fixture
    def announce(self, azure):
        return lambda: azure.events.append(event("Terminate", now=time.time()))

    @pytest.fixture
    def withdraw(self, azure):
        return azure.events.clear
