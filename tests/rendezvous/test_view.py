"""How many announcements a leader needs to be told of at once."""

from __future__ import annotations

import pytest

from elastic_core.rendezvous.decide import Wait
from elastic_core.rendezvous.view import View


def test_without_a_look_every_announcement_counts():
    assert View().lacking == 1


@pytest.mark.parametrize(("joined", "lacking"), [(0, 500), (900, 50), (999, 1), (1000, 1)])
def test_it_is_told_of_half_of_those_that_lack(joined, lacking):
    assert View(gathering=Wait(None, "few", joined=joined, wanted=1000)).lacking == lacking


def test_those_missing_by_name_count_before_the_number_wanted():
    assert View(gathering=Wait(None, "some", joined=2, wanted=1000, missing=tuple("abcdef"))).lacking == 3
