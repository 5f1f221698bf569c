from __future__ import annotations

import dataclasses

import pytest

from elastic_core.hooks.discovery import InvalidPlugin
from elastic_core.hooks.records import Option, RendezvousBackendRecord, StoreRecord
from elastic_core.hooks.validation import checked

GOOD = StoreRecord("redis", "a test", print, (Option("ttl", float, 3, "lease"), Option("tls", bool, None, "encrypt")))


def test_proper_records_pass_as_they_are():
    assert checked("elastic_stores", (GOOD,), StoreRecord) == [GOOD]
    assert checked("elastic_stores", [], StoreRecord) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "expected a name"),
        ({"name": None}, "expected a name"),
        ({"aliases": (3,)}, "expected a name"),
        ({"factory": "create"}, "the factory of 'redis' cannot be called"),
        ({"options": ("ttl",)}, "'redis' lists an object of type str among its options"),
        ({"options": (GOOD.options[0],) * 2}, "'redis' lists the option 'ttl' twice"),
        ({"options": (Option("ttl", list, None, ""),)}, "expected the type str, int, float or bool"),
        ({"options": (Option("ttl", float, "3", ""),)}, "the default '3' is no float"),
        ({"options": (Option("ttl", int, True, ""),)}, "the default True is no int"),
        ({"options": (Option("tls", bool, 1, ""),)}, "the default 1 is no bool"),
        ({"options": (Option(" ", str, None, ""),)}, "expected an option's name"),
    ],
)
def test_improper_records_are_told(changes, message):
    with pytest.raises(InvalidPlugin, match="elastic_stores: ") as raised:
        checked("elastic_stores", [dataclasses.replace(GOOD, **changes)], StoreRecord)
    assert message in str(raised.value)


@pytest.mark.parametrize("field", ["open_backend", "serve"])
def test_what_backends_may_bring_beside_must_be_callable(field):
    good = RendezvousBackendRecord("etcd", "a test", print)
    assert checked("hook", [good, dataclasses.replace(good, **{field: print})], RendezvousBackendRecord)
    with pytest.raises(InvalidPlugin, match=f"{field} of 'etcd' cannot be called"):
        checked("hook", [dataclasses.replace(good, **{field: "later"})], RendezvousBackendRecord)


def test_all_that_is_wrong_with_a_record_is_told_at_once():
    with pytest.raises(InvalidPlugin) as raised:
        checked("elastic_stores", [StoreRecord("", "", None)], StoreRecord)
    assert "expected a name" in str(raised.value)
    assert "cannot be called" in str(raised.value)


def test_added_options_are_checked_too():
    with pytest.raises(InvalidPlugin, match="the default 'x' is no int"):
        checked("elastic_add_options", [Option("a", int, "x", "")], Option)
