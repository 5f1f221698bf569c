"""How long is waited where the pages say how long."""

from __future__ import annotations

import inspect
import re

import pytest
from blocks import ROOT

from elastic_core import log
from elastic_core.workers.hang import HangPatience

HALF_A_SECOND = {
    "docs/debugging-a-hang.md": ("does not answer within half a second", HangPatience().answer),
    "docs/design/notes.md": (
        "A line waits half a second for its reader",
        inspect.signature(log.configure).parameters["patience"].default,
    ),
}


@pytest.mark.parametrize("page", HALF_A_SECOND)
def test_what_the_pages_call_half_a_second_is_one(page):
    words, seconds = HALF_A_SECOND[page]
    assert words in " ".join((ROOT / page).read_text().split())
    assert seconds == 0.5


def test_a_probe_under_attack_is_to_be_answered_before_the_page_has_kubernetes_give_up():
    target = re.search(r"^TARGET_PROBE_S = ([\d.]+)", (ROOT / "benchmarks/health.py").read_text(), re.M)
    waits = re.search(r"timeoutSeconds: (\d+)", (ROOT / "docs/health.md").read_text())
    assert float(target[1]) <= float(waits[1])


def test_a_worker_that_cannot_answer_is_killed_within_a_second():
    bounds = HangPatience()
    assert bounds.answer + bounds.console < 1.0
