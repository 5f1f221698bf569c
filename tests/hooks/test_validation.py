from __future__ import annotations

import dataclasses

import pytest

from elastic_core.errors import InvalidPlugin
from elastic_core.hooks.records import Option, RendezvousBackendRecord, StoreRecord, checked

GOOD = StoreRecord("redis", "a test", print, (Option("ttl", float, 3, "lease"), Option("tls", bool, None, "encrypt")))


def test_valid_records_are_returned():
    assert checked("elastic_stores", (GOOD,), StoreRecord) == [GOOD]
    assert checked("elastic_stores", [], StoreRecord) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": ""}, "expected a name"),
        ({"name": None}, "expected a name"),
        ({"aliases": (3,)}, "expected a name"),
        ({"factory": "create"}, "the factory of 'redis' is not callable"),
        ({"options": ("ttl",)}, "the options of 'redis' include an object of type str"),
        ({"options": (GOOD.options[0],) * 2}, "'redis' lists the option 'ttl' twice"),
        ({"options": (Option("ttl", list, None, ""),)}, "expected the type str, int, float or bool"),
        ({"options": (Option("ttl", float, "3", ""),)}, "expected a default of type float, found '3'"),
        ({"options": (Option("ttl", int, True, ""),)}, "expected a default of type int, found True"),
        ({"options": (Option("ttl", int, 1, "", least="0"),)}, "expected a number for 'least', found '0'"),
        ({"options": (Option("tls", bool, 1, ""),)}, "expected a default of type bool, found 1"),
        ({"options": (Option(" ", str, None, ""),)}, "expected an option name"),
    ],
)
def test_invalid_records_are_reported(changes, message):
    with pytest.raises(InvalidPlugin, match="elastic_stores: ") as raised:
        checked("elastic_stores", [dataclasses.replace(GOOD, **changes)], StoreRecord)
    assert message in str(raised.value)


@pytest.mark.parametrize("field", ["open_backend", "serve"])
def test_optional_functions_must_be_callable(field):
    good = RendezvousBackendRecord("etcd", "a test", print)
    assert checked("hook", [good, dataclasses.replace(good, **{field: print})], RendezvousBackendRecord)
    with pytest.raises(InvalidPlugin, match=f"{field} of 'etcd' is not callable"):
        checked("hook", [dataclasses.replace(good, **{field: "later"})], RendezvousBackendRecord)


def test_all_problems_of_a_record_are_reported():
    with pytest.raises(InvalidPlugin) as raised:
        checked("elastic_stores", [StoreRecord("", "", None)], StoreRecord)
    assert "expected a name" in str(raised.value)
    assert "is not callable" in str(raised.value)


def test_added_options_are_checked_too():
    with pytest.raises(InvalidPlugin, match="expected a default of type int, found 'x'"):
        checked("elastic_add_options", [Option("a", int, "x", "")], Option)
