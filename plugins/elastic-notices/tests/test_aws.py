"""Interruptions and recommendations of AWS, against a mock of IMDSv2."""

from __future__ import annotations

import json
import time

import pytest
from elastic_notices.aws import MetadataService, decode_action, decode_rebalance
from elastic_notices.web import Answer, Web
from elastic_testing import FakeClock, NoticeContract
from mocks import Aws, Fixed, utc

from elastic_core.plugin import Notice

NOW = 1_700_000_000.0
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


@pytest.mark.parametrize("action", ["hibernate", "stop", "terminate"])
def test_interruption_has_its_time(action):
    answer = Answer(200, json.dumps({"action": action, "time": "2023-11-14T22:15:20Z"}))
    assert decode_action(answer, NOW) == Notice(f"AWS will {action} this spot instance", NOW + 120)


def test_status_404_is_no_notice():
    assert decode_action(Answer(404), NOW) is None
    assert decode_rebalance(Answer(404)) is None


def test_recommendation_takes_effect_at_once():
    answer = Answer(200, '{"noticeTime": "2023-11-14T22:15:20Z"}')
    assert decode_rebalance(answer) == Notice("AWS recommends replacing this spot instance")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"action": "stop"}', '{"action": "stop", "time": 5}', '{"action": 3}']
)
def test_unknown_answer_is_an_error(text):
    with pytest.raises(ValueError, match=r"\w"):
        decode_action(Answer(200, text), NOW)
    if "time" not in text:
        with pytest.raises(ValueError, match=r"\w"):
            decode_rebalance(Answer(200, text))
    for status in (301, 403, 500):
        with pytest.raises(ValueError, match=str(status)):
            decode_action(Answer(status, text), NOW)


@pytest.fixture
def aws():
    return Aws()


@pytest.mark.integration
class TestAws(NoticeContract):
    @pytest.fixture(
        params=[
            ("aws", ACTION, lambda: {"action": "terminate", "time": utc(time.time() + 120)}),
            ("aws-rebalance", REBALANCE, lambda: {"noticeTime": utc(time.time())}),
        ],
        ids=["interruption", "rebalance"],
    )
    def kind(self, request):
        return request.param

    @pytest.fixture
    def source(self, start, serve, aws, kind):
        url = serve(aws)
        return lambda pause: start(kind[0], pause, notice_endpoint=url)

    @pytest.fixture
    def announce(self, aws, kind):
        _, path, answer = kind
        return lambda: aws.metadata.update({path: answer()})

    @pytest.fixture
    def withdraw(self, aws):
        return aws.metadata.clear


@pytest.mark.integration
def test_token_is_renewed_before_it_expires_and_when_refused(aws, serve):
    clock = FakeClock()
    service = MetadataService(Web(serve(aws), "--notice-endpoint"), clock)
    assert [service.get(ACTION).status for _ in range(3)] == [404] * 3
    assert len(aws.tokens_given) == 1
    clock.advance(5.95 * 3600)
    assert service.get(ACTION).status == 404
    assert len(aws.tokens_given) == 2
    aws.tokens.clear()  # as after a restart of the service
    assert service.get(ACTION).status == 404
    assert len(aws.tokens_given) == 3


@pytest.mark.integration
@pytest.mark.parametrize("token", ["a\nb: c", "\u20ac"])
def test_invalid_token_is_not_kept(serve, start, log, token):
    mock = Fixed(200, token)
    assert list(start("aws", lambda seconds: mock.asked < 3, notice_endpoint=serve(mock))) == []
    assert log.reasons == ["the service returned an invalid token; polling continues"]
    assert mock.path == "/latest/api/token"


@pytest.mark.integration
def test_endpoint_is_read_from_the_variable(aws, serve, start, monkeypatch, following):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", serve(aws) + "/")
    aws.metadata[ACTION] = {"action": "stop", "time": utc(time.time() + 60)}
    assert following(start("aws")).reason == "AWS will stop this spot instance"
