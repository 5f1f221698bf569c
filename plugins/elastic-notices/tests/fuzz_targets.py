"""Fuzz targets of elastic-notices. See `tests/fuzz/targets.py`."""

from __future__ import annotations

import json
from contextlib import suppress

from elastic_notices import aws, azure, gcp, slurm, url, watched_file
from elastic_notices.web import Answer
from fuzz.targets import DEEP, target, text_of

from elastic_core.text import printable

_NOW = 1_700_000_000.0
_EVENT = {"EventType": "Reboot", "Resources": ["vm"], "EventStatus": "Scheduled", "NotBefore": ""}


@target(
    (),
    b'{"action": "stop", "time": "2023-11-14T22:15:20Z", "noticeTime": "2023-11-14T22:15:20Z"}',
    b'{"at": 1700000060.5, "reason": "rack 7"}',
    json.dumps({"Events": [_EVENT, {**_EVENT, "NotBefore": "Tue, 14 Nov 2023 22:14:20 GMT"}]}).encode(),
    b"42 1700000060\n",
    b"2023-11-14T22:14:20Z\nrack 7",
    b"draining@\n",
    DEEP,
)
def notice(data):
    """Answers of metadata services, Slurm and a URL, and a file."""
    text = text_of(data)
    answer = Answer(200, text)
    for decode in (
        lambda: aws.decode_action(answer, _NOW),
        lambda: aws.decode_rebalance(answer),
        lambda: azure.decode(answer, "vm", _NOW),
        lambda: gcp.decode(text, text, _NOW, True),
        lambda: slurm.decode_end(text, "42", _NOW),
        lambda: slurm.decode_state(text),
        lambda: url.decode(answer, _NOW),
        lambda: watched_file.decode(text, _NOW),
    ):
        with suppress(ValueError):
            found = decode()
            assert found is None or printable(found.reason) == found.reason.strip() != ""
            assert found is None or found.at is None or found.at > _NOW
