"""The plugin's records and options, and the names of the first release."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import elastic_etcd_legacy as legacy
import pytest
from elastic_etcd.client.channel import Security
from elastic_etcd.client.members import Login
from elastic_etcd_legacy import plugin
from elastic_etcd_legacy.create import read
from elastic_etcd_legacy.settings import LegacySettings

from elastic_core import errors
from elastic_core.hooks.manager import PluginManager
from elastic_core.hooks.records import Context
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_core.plugin import RendezvousBackendRecord
from elastic_core.rendezvous import RendezvousHandlerRegistry


def params(endpoint="127.0.0.1:2379", least=1, most=2, **config):
    return RendezvousParameters("etcd-legacy", endpoint, "job", least, most, **config)


@pytest.mark.integration
def test_plugin_import_loads_neither_torch_nor_grpc_nor_etcd3():
    wanted = "{'torch', 'grpc', 'etcd3', 'google.protobuf'}"
    code = f"import sys, elastic_etcd_legacy.plugin, elastic_etcd_legacy; sys.exit(bool({wanted} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], timeout=180).returncode == 0


@pytest.mark.parametrize("module", ["grpc", "google.protobuf"])
def test_missing_library_error_names_it_and_the_plugin(module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    chosen = PluginManager.load({}).select(RendezvousBackendRecord, "etcd-legacy")
    with pytest.raises(errors.PluginError, match=f"'etcd-legacy' of elastic-etcd-legacy .*'{module}'.*install"):
        chosen.factory(Context(), params("127.0.0.1:1"))


def test_defaults_match_torch_etcd():
    settings, cluster = read(params())
    assert (settings.timeout, settings.last_call, settings.prefix) == (600.0, 30.0, "/torchelastic/p2p")
    assert (cluster.addresses, cluster.security) == (("127.0.0.1:2379",), None)
    (record,) = plugin.elastic_rendezvous_backends()
    defaults = {option.name: option.default for option in record.options}
    assert read(params(**defaults)) == (settings, cluster)


def test_options_are_read():
    settings, cluster = read(
        params(
            "a:1,[::1]:2",
            timeout="20",
            last_call_timeout=0,
            etcd_prefix="mine",
            protocol="https",
            cacert="ca.pem",
            cert="cert.pem",
            key="key.pem",
            user="me",
            password="secret",
        )
    )
    assert (settings.timeout, settings.last_call, settings.keys.root) == (20.0, 0.0, "/mine/run_job/")
    assert cluster.addresses == ("a:1", "[::1]:2")
    files = (str(Path(name).absolute()) for name in ("ca.pem", "cert.pem", "key.pem"))
    assert (cluster.security, cluster.login) == (Security(*files), Login("me", "secret"))


def test_problems_are_reported_together_by_given_name():
    with pytest.raises(errors.ConfigurationError) as caught:
        read(params("a:b", protocol="ftp", cert="cert.pem", timeout="soon", last_call_timeout=-1))
    problems = str(caught.value)
    assert "--rdzv-endpoint" in problems
    assert "ftp" in problems
    assert "--rdzv-conf: key: expected a certificate and its private key, found only cert" in problems
    assert "ssl_cert" not in problems
    assert "--rdzv-conf: timeout: expected a number of seconds > 0, found 'soon'" in problems
    assert "last_call_timeout: expected a number of seconds >= 0, found -1" in problems


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"run_id": ""}, "run id"),
        ({"min_nodes": 0}, "min_nodes"),
        ({"min_nodes": 3}, "min_nodes"),
    ],
)
def test_settings_out_of_bounds_are_refused(changed, problem):
    with pytest.raises(ValueError, match=problem):
        LegacySettings(**{"run_id": "job", "min_nodes": 1, "max_nodes": 2} | changed)


@pytest.mark.integration
def test_handler_creation_warns_and_needs_no_server():
    with pytest.warns(DeprecationWarning, match="use etcd"):
        handler = legacy.create_rdzv_handler(params("127.0.0.1:1"))
    assert isinstance(handler, legacy.EtcdRendezvousHandler)
    assert (handler.get_backend(), handler.get_run_id()) == ("etcd-legacy", "job")
    assert handler.shutdown()


@pytest.mark.integration
def test_deprecation_is_logged_once():
    code = """
import logging, warnings
logging.basicConfig()  # without it, our log would not print
from elastic_core.interfaces.handler import RendezvousParameters
from elastic_etcd_legacy import create_rdzv_handler
warnings.simplefilter("error")
for number in range(3):
    try:
        create_rdzv_handler(RendezvousParameters("etcd-legacy", "127.0.0.1:1", "job", 1, 1))
    except DeprecationWarning:
        warnings.simplefilter("ignore")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("backend deprecated") == 1


def test_names_of_the_first_release_still_exist():
    assert legacy.RendezvousException is errors.RendezvousError
    assert legacy.RendezvousClosedException is errors.RendezvousClosedError
    assert legacy.RendezvousTimeoutException is errors.RendezvousTimeoutError
    assert issubclass(legacy.RendezvousNonRetryableError, legacy.RendezvousException)
    assert issubclass(legacy.RendezvousHandlerFactory, RendezvousHandlerRegistry)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_factory_of_the_first_release_still_works():
    factory = legacy.RendezvousHandlerFactory()
    factory.register("etcd-legacy", legacy.create_rdzv_handler)
    handler = factory.create_rdzv_handler(params("127.0.0.1:1"))
    assert handler.get_run_id() == "job"
    assert handler.shutdown()
