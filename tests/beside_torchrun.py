"""How stock torchrun and elastic-core read a command line before anything starts, and the table of lines that only
elastic-core refuses.

For torchrun its own code runs, except that the agent is not created and stores are not connected. For elastic-core the
configuration is read and the backend's factory runs.
"""

from __future__ import annotations

import contextlib
import copy
import io
import os
import random
import re
import socket
import tempfile
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

from elastic_core.compose.plan import plan_of
from elastic_core.config import Reading, Settings, Sources, read
from elastic_core.errors import ConfigurationError, Problem
from elastic_core.hooks.manager import PluginManager
from elastic_core.interfaces.node import Node
from elastic_core.support.sockets import without_brackets

PAGE = " ".join((Path(__file__).parents[1] / "docs" / "guides" / "migrate-from-torchrun.md").read_text().split())
"""docs/guides/migrate-from-torchrun.md with every run of white space replaced by one space."""


@dataclass(frozen=True)
class Refusal:
    """A line that torchrun accepts and elastic-core refuses.

    Args:
        line: an example.
        problem: pattern that matches the messages (`origin: message`) of all such lines.
        sentence: part of the page that documents it.
    """

    line: str
    problem: str
    sentence: str


REFUSED = [
    Refusal("--stand worker.py", "unknown flag", "Flags must be written out"),
    Refusal("-mr3 worker", "unknown flag", "short ones given separately"),
    Refusal(
        "--rdzv-conf=colour=red worker.py",
        "unknown option",
        "An unknown option is an error, and the message names the nearest known option",
    ),
    Refusal("--rdzv-conf=ssl_cert=c.pem worker.py", "unknown option", "except for TLS options"),
    Refusal(
        "--rdzv-backend=static --master-port=0 worker.py",
        "whose port is not a number from 1",
        "an error: `static` needs a port",
    ),
    Refusal(
        "--nnodes=2 --rdzv-endpoint=localhost:1234 worker.py",
        "requires --rdzv-id",
        "`none` with `static`, otherwise an error",
    ),
    Refusal(
        "--nnodes=2 --rdzv-backend=c10d --rdzv-id=job worker.py",
        "requires --rdzv-endpoint",
        "| `c10d` for several nodes, without an endpoint or with port 0 |",
    ),
    Refusal(
        "--nnodes=2 --rdzv-endpoint=localhost:0 --rdzv-id=job worker.py",
        "whose port is not a number from 1",
        "| `c10d` for several nodes, without an endpoint or with port 0 |",
    ),
    Refusal(
        "--nnodes=2 --node-rank=1 --master-port=1234 --rdzv-id=job worker.py",
        "requires --rdzv-endpoint|requires --rdzv-id",
        "an error: add `--master-addr`, or name `static`",
    ),
    Refusal(
        "--standalone --nnodes=2 worker.py",
        "--standalone and --nnodes=2:2 are mutually exclusive",
        "is treated as 1, and `--nnodes 2` is an error",
    ),
    Refusal(
        "--rdzv-backend=static --nnodes=1:2 worker.py",
        "the static backend requires a fixed number of nodes",
        "an error: `static` needs a fixed number of nodes",
    ),
    Refusal("--node-rank=1 worker.py", "expected a rank from 0 to", "An impossible value is an error"),
    Refusal(
        "--rdzv-backend=c10d --master-port=70000 worker.py",
        "expected a whole number from 0 to 65535",
        "An impossible value is an error",
    ),
    Refusal(
        "--rdzv-backend=c10d --rdzv-conf=keep_alive_interval=0 worker.py",
        "keep_alive_interval: expected .* found",
        "An impossible value is an error",
    ),
    Refusal(
        "--rdzv-backend=c10d --rdzv-conf=keep_alive_max_attempt=1 worker.py",
        "keep_alive_max_attempt: expected .* found",
        "An impossible value is an error",
    ),
    Refusal(
        "--rdzv-backend=static --rdzv-conf=timeout=0 worker.py",
        "timeout: expected a number of seconds > 0",
        "An impossible value is an error",
    ),
    Refusal(
        "--rdzv-backend=static --node-rank=0 --rdzv-conf=rank=1 worker.py",
        "rank: expected|contradicts --node-rank",
        "they must agree",
    ),
    Refusal("--rdzv-id= worker.py", "expected a non-empty string", "An empty value is an error"),
    Refusal("--log-dir= worker.py", "expected a path, found ''", "An empty value is an error"),
    Refusal("--signals-to-handle=SIGNONE worker.py", "expected the name of a signal", "an unknown name is an error"),
    Refusal(
        "--rdzv-backend=c10d --rdzv-endpoint=::1:29400 worker.py",
        "which has several colons but is not an IPv6 address",
        "an IPv6 address with a port needs brackets",
    ),
    Refusal(
        "--rdzv-backend=etcd-v2 --rdzv-endpoint=host --rdzv-conf=ssl_cert=c.pem worker.py",
        "expected a certificate and its private key, found only ssl_cert(_key)?",
        "even if one file holds both",
    ),
    Refusal(
        "--rdzv-backend=c10d --rdzv-conf=store_type=file worker.py",
        "requires the path of a file that all nodes share",
        "requires an endpoint, which is the path of the file",
    ),
    Refusal(
        "--rdzv-backend=etcd-v2 --nnodes=2 --rdzv-id=job worker.py",
        "expected endpoints .* found ''",
        "| `etcd` for several nodes, without an endpoint |",
    ),
]


class RefusedLine(Exception):
    """torchrun refuses the line; the message is the reason."""


class _Reached(BaseException):
    """torchrun would create the agent now. A BaseException, so that no handler of errors catches it."""


@dataclass(frozen=True)
class Theirs:
    """What torchrun would run.

    Args:
        args: the line as its parser reads it.
        config: torch's `LaunchConfig`.
        spec: torch's `WorkerSpec`, with the handler.
        store: the arguments of the store, or etcd client, that it would connect; empty for `static`.
    """

    args: Any
    config: Any
    spec: Any
    store: dict[str, Any]


@dataclass(frozen=True)
class Ours:
    """What elastic-core would run. `options` are the backend's options, typed."""

    settings: Settings
    script: str | None
    script_args: tuple[str, ...]
    options: dict[str, Any]


class Torchrun:
    """Reads lines as torchrun does. `folder` takes its temporary files."""

    def __init__(self, folder: Path) -> None:
        from torch.distributed import HashStore, run
        from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as c10d
        from torch.distributed.elastic.rendezvous import etcd_rendezvous, etcd_rendezvous_backend
        from torch.distributed.launcher import api

        self._run = run
        self._parser = run.get_args_parser()  # to make one takes longer than to parse a line
        self._store: dict[str, Any] = {}
        self._kept: dict[str, Any] = {}
        self._patches = [
            mock.patch.object(tempfile, "tempdir", str(folder)),
            mock.patch.object(socket, "getfqdn", lambda *_: "this.machine"),
            mock.patch.object(api, "LocalElasticAgent", self._agent),
            mock.patch.object(c10d, "_matches_machine_hostname", lambda _: True),
            mock.patch.object(
                c10d, "TCPStore", lambda host, port, **more: self._record(HashStore(), host, port, **more)
            ),
            mock.patch.object(c10d, "FileStore", lambda path: self._record(HashStore(), path, None)),
            mock.patch.object(etcd_rendezvous, "etcd", self._etcd()),
            mock.patch.object(etcd_rendezvous_backend, "etcd", self._etcd()),
        ]

    @property
    def module(self) -> Any:
        """torch.distributed.run."""
        return self._run

    def options(self, text: str) -> dict[str, str]:
        """torch's reading of `--rdzv-conf`."""
        found: dict[str, str] = self._run._parse_rendezvous_config(text)
        return found

    def streams(self, text: str) -> Any:
        """torch's reading of `--redirects` and `--tee`."""
        return self._run.Std.from_str(text)

    def parse(self, words: list[str], environ: dict[str, str] | None = None) -> Any:
        """The result of torchrun's parser. Raises RefusedLine."""
        quiet = io.StringIO()
        variables = mock.patch.dict(os.environ, environ) if environ else contextlib.nullcontext()
        with variables, contextlib.redirect_stderr(quiet):
            try:
                return (self._run.get_args_parser() if environ else self._parser).parse_args(words)
            except (SystemExit, ValueError) as error:
                raise RefusedLine(f"{error}: {quiet.getvalue()}") from error

    def read(self, words: list[str], environ: dict[str, str] | None = None) -> Theirs:
        """Raises RefusedLine."""
        args = self.parse(words, environ)
        config: list[Any] = []
        real = self._run.elastic_launch

        def launch(**given: Any) -> Any:
            config.append(given["config"])
            return real(**given)

        with contextlib.ExitStack() as stack:
            for patch in (*self._patches, mock.patch.dict(os.environ, environ or {})):
                stack.enter_context(patch)
            stack.enter_context(mock.patch.object(self._run, "elastic_launch", launch))
            self._store.clear()
            try:
                self._run.run(copy.copy(args))
            except _Reached:
                return Theirs(args, config[0], self._kept["spec"], dict(self._store))
            except Exception as error:
                raise RefusedLine(f"{type(error).__name__}: {error}") from error
        raise AssertionError("expected that torchrun makes an agent or raises")

    def _agent(self, spec: Any, **_: Any) -> Any:
        self._kept["spec"] = spec
        raise _Reached

    def _record(self, store: Any, host: str, port: int | None, **more: Any) -> Any:
        self._store.update(more, host=host, port=port)
        return store

    def _etcd(self) -> Any:
        """Stands in for the module that torch's etcd backends import. It is not installed, as it supports only obsolete
        servers."""
        etcd = mock.MagicMock()
        etcd.EtcdException = etcd.EtcdAlreadyExist = type("EtcdException", (Exception,), {})
        etcd.Client = lambda host="localhost", port=2379, **more: self._record(mock.MagicMock(), host, port, **more)
        return etcd


class Elastic:
    """Reads lines as `elastic run` does, in a folder with `worker.py`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._manager = PluginManager.load({})
        (folder / "worker.py").write_text("")
        (folder / "elastic.toml").write_text("")

    def settings(self, words: list[str], environ: dict[str, str] | None = None) -> Settings:
        """The settings alone, without looking for plugins or the script. Raises ConfigurationError."""
        return self._reading(words, environ, require_script=False).settings

    def read(self, words: list[str], environ: dict[str, str] | None = None) -> Ours:
        """Raises ConfigurationError."""
        reading = self._reading(words, environ)
        plan = plan_of(reading, self._manager).checked()
        if not serves_itself(reading.settings):
            node = Node("node", rank_hint=reading.settings.node_rank)
            with contextlib.chdir(self._folder):  # the path of a store's file may be relative
                plan.handler(node).shutdown()
        return Ours(reading.settings, reading.script, reading.script_args, dict(plan.backend.options))

    def _reading(self, words: list[str], environ: dict[str, str] | None, **more: bool) -> Reading:
        sources = Sources(words, environ or {}, self._folder)
        return read(sources, backend_named=self._manager.backend_named, **more)


def serves_itself(settings: Settings) -> bool:
    """Whether the handler of these settings starts a server: a single node over etcd, without an endpoint."""
    return settings.rdzv_backend.startswith("etcd") and not settings.rdzv_endpoint and settings.nnodes.max == 1


def unexplained(error: ConfigurationError) -> list[Problem]:
    """Problems that do not match any row of REFUSED."""
    return [each for each in error.problems if not any(re.search(row.problem, str(each)) for row in REFUSED)]


ANYWHERE = None
"""Any free port, on a single node."""


def found_at(theirs: Theirs) -> object:
    """Where torchrun's nodes meet."""
    handler = theirs.spec.rdzv_handler
    host, port = (
        (theirs.store["host"], theirs.store["port"]) if theirs.store else (handler.master_addr, handler.master_port)
    )
    return ANYWHERE if port == 0 else (host, port)


def meets_at(ours: Ours) -> object:
    """Where elastic-core's nodes meet."""
    from elastic_c10d.endpoint import parse_endpoint
    from elastic_etcd.parameters import parse_endpoints

    settings, options = ours.settings, ours.options
    if settings.rdzv_backend == "local":
        host, port = without_brackets(options["master_addr"] or "127.0.0.1"), options["master_port"]
        return (host, port) if port else ANYWHERE
    if options.get("store_type", "tcp").lower() == "file":
        return settings.rdzv_endpoint, None
    if not settings.rdzv_endpoint:
        return ANYWHERE
    if settings.rdzv_backend.startswith("etcd"):
        (found,) = parse_endpoints(settings.rdzv_endpoint)
        return found.host, found.port
    endpoint = parse_endpoint(settings.rdzv_endpoint, least_port=0)
    return (endpoint.host, endpoint.port) if endpoint.port else ANYWHERE


def their_options(theirs: Theirs) -> dict[str, object]:
    """The options that apply in torchrun, typed."""
    handler, store = theirs.spec.rdzv_handler, theirs.store
    if not store:
        return {"timeout": handler.timeout.total_seconds()}
    found: dict[str, object] = {}
    if hasattr(handler, "settings"):  # a dynamic handler
        times = handler.settings.timeout
        found = {f"{name}_timeout": getattr(times, name).total_seconds() for name in ("join", "last_call", "close")}
        found["heartbeat_timeout"] = times.heartbeat.total_seconds()
        found["keep_alive_interval"] = handler.settings.keep_alive_interval.total_seconds()
        found["keep_alive_max_attempt"] = handler.settings.keep_alive_max_attempt
    if store["port"] is None:
        return {**found, "store_type": "file"}
    if "is_master" in store:
        found |= {"store_type": "tcp", "is_host": store["is_master"], "read_timeout": store["timeout"].total_seconds()}
    else:
        found |= {"protocol": store["protocol"], "read_timeout": store.get("read_timeout")}
    return {name: value for name, value in found.items() if value is not None}


def compared(theirs: Theirs, ours: Ours) -> dict[str, tuple[object, object]]:
    """Pairs of torchrun's and elastic-core's value for everything that may differ."""
    fixed = not theirs.store
    nodes = (theirs.config.max_nodes if fixed else theirs.config.min_nodes, theirs.config.max_nodes)
    found: dict[str, tuple[object, object]] = {
        "nodes": (nodes, (ours.settings.nnodes.min, ours.settings.nnodes.max)),
        "where": (found_at(theirs), meets_at(ours)),
        "id": (theirs.args.rdzv_id != "none" and not theirs.args.standalone and theirs.args.rdzv_id, given_id(ours)),
    }
    named = {key.lower().replace("-", "_"): key for key in ours.settings.rdzv_conf}
    for name, value in their_options(theirs).items():
        if named.get(name) == name and name in ours.options:
            own = ours.options[name]
            found[f"option {name}"] = value, own.lower() if isinstance(own, str) else own
    if ours.settings.rdzv_backend == "static":
        found["rank"] = theirs.args.node_rank, ours.settings.node_rank
    return found


def given_id(ours: Ours) -> object:
    """The id, or False if it was generated."""
    known = ours.settings.rdzv_id
    return False if known == "none" or re.fullmatch("[0-9a-f]{16}", known or "") else known


BACKENDS = ("", "static", "c10d", "etcd-v2", "etcd")
ENDPOINTS = (
    *("", "localhost", "localhost:{port}", "127.0.0.1:{port}", "localhost:0", "[::1]:{port}", "[::1]", "::1"),
    *("::1:{port}", "{name}", "{name}:{port}", "nowhere.invalid:{port}", "{tmp}/store"),
)
NNODES = ("", "1", "1:1", "1:2", "2")
MASTERS = (
    *("", "--master-addr=127.0.0.1", "--master-port={port}", "--master-addr=127.0.0.1 --master-port={port}"),
    *("--master-addr=[::1] --master-port={port}", "--master-addr=::1 --master-port={port}"),
    *("--master-addr=[::1]", "--master-addr={name}", "--master-port=0"),
)
WHOLE = ("join_timeout", "last_call_timeout", "close_timeout", "heartbeat_timeout", "read_timeout", "timeout")
OPTIONS = {
    **dict.fromkeys(WHOLE, ("900", "+9", "1_0", "0090")),
    "keep_alive_interval": ("2", "+5", "0", "-1"),
    "keep_alive_max_attempt": ("4", "+5", "1", "0"),
    "store_type": ("tcp", "TCP", "Tcp", "file", "FILE"),
    "is_host": (*("1", "true", "True", "T", "yes", "YES", "y"), *("0", "false", "FALSE", "f", "no", "No", "n")),
    "rank": ("0", "1"),
    "etcd_prefix": ("/jobs",),
    "protocol": ("http", "HTTP", "https"),
    **dict.fromkeys(("ssl_cert", "ssl_cert_key", "ca_cert", "cacert", "cert", "key"), ("some.pem",)),
}
CONF = (
    "",
    *(f"{name}={value}" for name, values in OPTIONS.items() for value in values),
    *(f"{name.upper()}={values[0]}" for name, values in OPTIONS.items()),
    *(f"{name.replace('_', '-')}={values[0]}" for name, values in OPTIONS.items()),
    *("join_timeout=900,last_call_timeout=1", " join_timeout = 900 , is_host = true ", "read_timeout=5,store_type=tcp"),
)


def combinations(seed: int) -> list[tuple[str, ...]]:
    """Lines for torchrun's rendezvous, with placeholders: every backend with every endpoint, number of nodes and
    `--standalone`, and every backend with every option; the other flags are random."""
    chance = random.Random(seed)
    fixed = [
        *(
            (one, where, nodes, alone, None)
            for one, where, nodes, alone in product(BACKENDS, ENDPOINTS, NNODES, (0, 1))
        ),
        *((one, None, None, 0, conf) for one, conf in product(BACKENDS, CONF)),
        *(("static", "localhost:{port}", "2", 0, f"rank={rank}") for rank in (0, 1) * 8),
        *[("", "{name}:{port}", "2", 0, "store_type=file")] * 8,
        *[("", "", "1", 0, "store_type=file")] * 4,
    ]
    return [_line(chance, *each) for each in fixed]


def _line(
    chance: random.Random, backend: str, endpoint: str | None, nodes: str | None, standalone: int, conf: str | None
) -> tuple[str, ...]:
    endpoint = chance.choice(ENDPOINTS) if endpoint is None else endpoint
    nodes = chance.choice(NNODES) if nodes is None else nodes
    conf = chance.choice(("", "", chance.choice(CONF))) if conf is None else conf
    flags = {"--rdzv-backend": backend, "--rdzv-endpoint": endpoint, "--nnodes": nodes, "--rdzv-conf": conf}
    flags |= {"--rdzv-id": chance.choice(("", "job", "job")), "--node-rank": chance.choice(("", "", "{rank}", "1"))}
    words = [f"{flag}={value}" for flag, value in flags.items() if value]
    words += ["--standalone"] * standalone + chance.choice(("", *MASTERS)).split()
    chance.shuffle(words)
    return (*words, "worker.py")
