from __future__ import annotations

import importlib
import sys

import pytest
from hook_examples import load

from elastic_core.errors import (
    PluginError,
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousStateError,
    RendezvousTimeoutError,
)
from elastic_core.hooks.records import Context, RendezvousBackendRecord
from elastic_core.interfaces.handler import RendezvousHandler, RendezvousParameters

HANDLER = """
    class RendezvousError(Exception):
        pass

    class RendezvousClosedError(RendezvousError):
        pass

    class RendezvousTimeoutError(RendezvousError):
        pass

    class RendezvousConnectionError(RendezvousError):
        pass

    class RendezvousStateError(RendezvousError):
        pass

    class RendezvousGracefulExitError(RendezvousError):
        pass

    class QuorumLost(RendezvousStateError):
        pass

    raises = {}
    calls = []

    def step(what, answer=None):
        calls.append(what)
        if what in raises:
            raise raises[what]
        return answer

    class Handler:
        use_agent_store = True

        def __init__(self, params):
            self.params = params
            step("create")

        def get_backend(self):
            return "old"

        def get_run_id(self):
            return self.params.run_id

        def next_rendezvous(self):
            return step("next_rendezvous", ("the", "round"))

        def is_closed(self):
            return step("is_closed", False)

        def set_closed(self):
            step("set_closed")

        def num_nodes_waiting(self):
            return step("num_nodes_waiting", 3)

        def shutdown(self):
            return step("shutdown", True)

    class OlderHandler(Handler):
        def __getattribute__(self, name):
            if name == "use_agent_store":
                raise AttributeError(name)
            return super().__getattribute__(name)

    def make_older():
        return OlderHandler

    def make_creator():
        return Handler

    def give_nothing():
        return None

    def make_faulty():
        return faulty

    def faulty(params):
        raise LookupError("'no such ring'")

    def fail():
        raise RuntimeError("no driver")
    """
PARAMS = RendezvousParameters("old", "host:1", "job", 1, 2, colour="red")


@pytest.fixture
def handler_points(install):
    """A function that installs a handler written for torchrun under the name `old`."""

    def handler_points(target="make_creator", name="old-dist", version="0.7"):
        module = f"{name.replace('-', '_')}_handler"
        lines = {"torchrun.handlers": [f"old = {module}:{target}"]}
        return install(name, lines, {module: HANDLER}, version)

    return handler_points


def test_handler_is_a_backend_accepting_any_option(handler_points):
    record = load(handler_points()).select(RendezvousBackendRecord, "old")
    assert record.options is None
    handler = record.factory(Context(), PARAMS)
    assert isinstance(handler, RendezvousHandler)
    assert (handler.get_backend(), handler.get_run_id()) == ("old", "job")


@pytest.fixture
def foreign(handler_points):
    """A function that adapts a foreign handler; and the foreign module, once it is loaded."""

    def foreign(target="make_creator", **raises):
        points = handler_points(target)
        module = importlib.import_module("old_dist_handler")
        module.raises.update({call: getattr(module, name)("why: 7 of 8") for call, name in raises.items()})
        return load(points).select(RendezvousBackendRecord, "old").factory(Context(), PARAMS), module

    return foreign


def test_calls_are_forwarded(foreign):
    handler, module = foreign()
    assert handler.next_rendezvous() == ("the", "round")
    assert (handler.is_closed(), handler.set_closed(), handler.num_nodes_waiting()) == (False, None, 3)
    assert (handler.use_agent_store, handler.shutdown()) == (True, True)
    assert module.calls == ["create", "next_rendezvous", "is_closed", "set_closed", "num_nodes_waiting", "shutdown"]


def test_older_handler_has_no_agent_store(foreign):
    handler, _ = foreign("make_older")
    assert handler.use_agent_store is False


def test_leaving_node_does_not_shut_foreign_handler_down(foreign):
    handler, module = foreign()
    assert handler.shutdown() is False
    assert module.calls == ["create"]
    handler.set_closed()
    assert handler.shutdown() is True
    assert module.calls == ["create", "set_closed", "shutdown"]


ERRORS = {
    "RendezvousClosedError": RendezvousClosedError,
    "RendezvousTimeoutError": RendezvousTimeoutError,
    "RendezvousConnectionError": RendezvousConnectionError,
    "RendezvousStateError": RendezvousStateError,
    "RendezvousGracefulExitError": RendezvousGracefulExitError,
    "RendezvousError": RendezvousError,
    "QuorumLost": RendezvousStateError,
}


@pytest.mark.parametrize(("name", "ours"), ERRORS.items())
def test_errors_are_replaced_by_class_name(foreign, name, ours):
    handler, module = foreign(next_rendezvous=name)
    with pytest.raises(RendezvousError) as raised:
        handler.next_rendezvous()
    assert (type(raised.value), str(raised.value)) == (ours, "why: 7 of 8")
    assert raised.value.__cause__ is module.raises["next_rendezvous"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("RendezvousClosedError", "the job was closed; the rendezvous handler does not report by which node"),
        ("RendezvousTimeoutError", "the rendezvous handler raised RendezvousTimeoutError without a message"),
    ],
)
def test_error_without_message_gets_one(foreign, name, words):
    handler, module = foreign()
    module.raises["next_rendezvous"] = getattr(module, name)()
    with pytest.raises(RendezvousError, match=words):
        handler.next_rendezvous()


@pytest.mark.parametrize("call", ["is_closed", "set_closed", "num_nodes_waiting", "shutdown"])
def test_errors_of_every_call_are_replaced(foreign, call):
    handler, _ = foreign(**{call: "RendezvousConnectionError"})
    if call == "shutdown":
        handler.set_closed()  # not called by a node that just leaves
    with pytest.raises(RendezvousConnectionError, match="why: 7 of 8"):
        getattr(handler, call)()


def test_creation_error_is_replaced(foreign):
    with pytest.raises(RendezvousConnectionError, match="why: 7 of 8"):
        foreign(create="RendezvousConnectionError")


def test_other_errors_are_not_replaced(foreign):
    handler, module = foreign()
    own = RendezvousTimeoutError("ours already")
    for error in (ZeroDivisionError("a fault"), own):
        module.raises["next_rendezvous"] = error
        with pytest.raises(type(error)) as raised:
            handler.next_rendezvous()
        assert raised.value is error


@pytest.mark.torch
@pytest.mark.parametrize("name", ["DistStoreError", "DistNetworkError"])
def test_torch_store_error_is_a_connection_error(foreign, name):
    import torch.distributed

    handler, module = foreign()
    module.raises["next_rendezvous"] = getattr(torch.distributed, name)("wait timeout after 60000ms")
    with pytest.raises(RendezvousConnectionError, match="wait timeout after 60000ms"):
        handler.next_rendezvous()


@pytest.mark.torch
@pytest.mark.parametrize("name", [name for name in ERRORS if name != "QuorumLost"])
def test_torch_errors_are_replaced(foreign, name):
    import torch.distributed.elastic.rendezvous as torchs

    handler, module = foreign()
    module.raises["next_rendezvous"] = getattr(torchs, name)("why")
    with pytest.raises(ERRORS[name], match="why") as raised:
        handler.next_rendezvous()
    assert type(raised.value) is ERRORS[name]


def test_handler_is_imported_only_when_created(handler_points):
    manager = load(handler_points())
    record = manager.select(RendezvousBackendRecord, "old")
    assert manager.records(RendezvousBackendRecord)[0].source.version == "0.7"
    assert "old_dist_handler" not in sys.modules
    record.factory(Context(), PARAMS)
    assert "old_dist_handler" in sys.modules


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("absent", "AttributeError"),
        ("fail", "RuntimeError: no driver"),
        ("give_nothing", "old_dist_handler:give_nothing() must return a function, but returned None"),
        ("make_faulty", "LookupError: 'no such ring'; raised in "),
    ],
)
def test_failure_names_distribution_and_version(handler_points, target, why):
    record = load(handler_points(target)).select(RendezvousBackendRecord, "old")
    with pytest.raises(PluginError) as raised:
        record.factory(Context(), PARAMS)
    assert "the rendezvous backend 'old' of plugin 'old' of old-dist 0.7 failed: " in str(raised.value)
    assert why in str(raised.value)


def test_native_backend_of_same_distribution_is_preferred(install, backend_source):
    groups = {"elastic": ["plugin = both_native"], "torchrun.handlers": ["old = both_handler:make_creator"]}
    points = install("both", groups, {"both_native": backend_source("old"), "both_handler": HANDLER})
    manager = load(points)
    assert manager.select(RendezvousBackendRecord, "old").options == ()
    assert manager.conflicts() == ()


def test_backend_of_another_distribution_conflicts(handler_points, install_plugin, backend_source):
    manager = load(handler_points(), install_plugin("new-dist", backend_source("old")))
    with pytest.raises(PluginError) as raised:
        manager.select(RendezvousBackendRecord, "old")
    assert "new-dist 1.0" in str(raised.value)
    assert "old-dist 0.7" in str(raised.value)
    assert [conflict.name for conflict in manager.conflicts()] == ["old"]


def test_handler_can_be_blocked(handler_points):
    manager = load(handler_points(), ELASTIC_DISABLE_PLUGINS="old")
    assert manager.records(RendezvousBackendRecord) == ()
    assert manager.handlers == ()
    assert [source.plugin for source in manager.blocked] == ["old"]
