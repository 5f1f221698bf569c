"""Many agents, each with a separate rendezvous handler, as threads of one process or in processes forked from it.

    agents.py LAUNCHER PORT RUN_ID NODES FIRST COUNT JOIN_TIMEOUT_S THREADS|FORKS [NAME=VALUE,...]

The last argument has rendezvous options of elastic-core. Creates the handlers `FIRST` to `FIRST + COUNT - 1` of a job
of `NODES` nodes with the store on `PORT`, and prints a line when they are ready. Then it answers each line of JSON on
standard input with one line, and exits at the end of the input:

    {"join": INSTANT}      let all agents join at this instant of time.monotonic; returns how many have finished
    {"joined": true}       the result of each join
    {"follow": true}       from now on, act as an agent does while its workers run
    {"ended": true}        the reasons of agents whose round has ended (elastic-core only)
    {"traffic": true}      the kernel's counters of this process's connections
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import resource
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TextIO

from traffic import connections

# Interval at which torchrun's agent asks for waiting nodes while its workers run (--monitor-interval). The handler
# forwards that to the store once a second at most.
POLL_EVERY_S = 0.1
HOST = "127.0.0.1"

# The number of ephemeral ports limits the connections to one address. With more agents than this, each process connects
# to a different loopback address.
MOST_AT_ONE_ADDRESS = 4096

# Interval in seconds at which waiting threads request the interpreter lock. With the default of 5 ms, hundreds of
# waiting threads would do little but wake up, which does not happen to an agent in a separate process.
SWITCH_INTERVAL_S = 0.1


@dataclass(frozen=True)
class Setting:
    """The command line."""

    launcher: str
    port: int
    run_id: str
    nodes: int
    first: int
    count: int
    join_timeout_s: int
    conf: dict[str, str]


@dataclass
class Agent:
    """One agent and its results. `start` and `end` of its join are instants of time.monotonic."""

    name: str
    handler: Any
    start: float = 0.0
    end: float = 0.0
    rank: int = -1
    world_size: int = 0
    error: str = ""
    info: Any = None  # holds the round's store, which is closed with its last reference

    def join(self, go: threading.Event) -> None:
        go.wait()
        self.start = time.monotonic()
        try:
            self.info = self.handler.next_rendezvous()
            self.end = time.monotonic()
            self.rank, self.world_size = self.info.rank, self.info.world_size
        except Exception as error:  # noqa: BLE001 - any error is reported
            self.end = time.monotonic()
            self.error = f"{type(error).__name__}: {error}"[:300]

    def joined(self) -> dict[str, Any]:
        """The result for JSON. Agents agree if their digests of the members are equal; torchrun's have none."""
        formed = getattr(self.info, "formed", None)
        members = [member.node for member in formed.members] if formed else []
        digest = hashlib.sha256("\n".join(members).encode()).hexdigest() if members else ""
        if not self.error and members and members[self.rank] != self.name:
            self.error = f"has rank {self.rank}, where others see {members[self.rank]}"
        shown = ("start", "end", "rank", "world_size", "error")
        return {**{name: getattr(self, name) for name in shown}, "members": digest}

    def follow(self) -> None:
        """Poll, as torchrun's agent does, and elastic-core's if its handler does not notify it."""
        while True:
            self.handler.num_nodes_waiting()
            time.sleep(POLL_EVERY_S)


def node_name(number: int) -> str:
    return f"node{number}"


def elastic_handler(setting: Setting, number: int) -> Any:
    """A handler of elastic-core with defaults."""
    from elastic_c10d import create_backend

    from elastic_core.rendezvous import create_handler

    parameters = elastic_parameters(setting, number)
    backend, store = create_backend(parameters)
    return create_handler(store, backend, parameters)


def signed_handler(setting: Setting, number: int) -> Any:
    """The same, with a secret that all processes of the benchmark know."""
    with tempfile.NamedTemporaryFile() as secret:  # readable by this user only
        secret.write(setting.run_id.encode() * 2)
        secret.flush()
        from elastic_c10d import create_backend

        from elastic_core.rendezvous import create_handler

        parameters = elastic_parameters(setting, number)
        parameters.config["secret_file"] = secret.name
        backend, store = create_backend(parameters)
        return create_handler(store, backend, parameters)


def etcd_handler(setting: Setting, number: int) -> Any:
    """A handler over etcd that connects when it first joins, as in `elastic run`."""
    import grpc  # noqa: F401 - keeps the import out of the measured time
    from elastic_etcd.client.messages import rpc

    from elastic_core.rendezvous import get_rendezvous_handler

    rpc()
    return get_rendezvous_handler(elastic_parameters(setting, number, "etcd"))


def elastic_parameters(setting: Setting, number: int, backend: str = "c10d") -> Any:
    from elastic_core.interfaces.node import Node
    from elastic_core.rendezvous import RendezvousParameters

    return RendezvousParameters(
        backend,
        f"{store_host(setting)}:{setting.port}",
        setting.run_id,
        setting.nodes,
        setting.nodes,
        HOST,
        Node(node_name(number), f"host{number}"),
        join_timeout=setting.join_timeout_s,
        **({"is_host": False} if backend == "c10d" else {}),
        **setting.conf,
    )


def store_host(setting: Setting) -> str:
    """The address at which the agents of this process reach the store."""
    if setting.nodes <= MOST_AT_ONE_ADDRESS:
        return HOST
    return f"127.0.0.{1 + setting.first // setting.count}"


def late_handler(setting: Setting, number: int) -> Any:
    """A handler that connects when it first joins and makes a store for each round, as in `elastic run`."""
    import torch.distributed  # noqa: F401 - keeps the import out of the measured time

    from elastic_core.rendezvous import get_rendezvous_handler

    return get_rendezvous_handler(elastic_parameters(setting, number))


def torchrun_handler(setting: Setting, number: int) -> Any:
    """A handler of torch with defaults."""
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    parameters = RendezvousParameters(
        "c10d",
        f"{HOST}:{setting.port}",
        setting.run_id,
        setting.nodes,
        setting.nodes,
        HOST,
        is_host=False,
        join_timeout=setting.join_timeout_s,
    )
    backend, store = create_backend(parameters)
    return create_handler(store, backend, parameters)


MAKERS: dict[str, Callable[[Setting, int], Any]] = {
    "elastic": elastic_handler,
    "elastic-late": late_handler,
    "elastic-signed": signed_handler,
    "elastic-etcd": etcd_handler,
    "torchrun": torchrun_handler,
}

# The modules that an agent needs, if they differ from those of c10d.
SHARED = {"elastic-etcd": ("grpc", "elastic_etcd.backend.create")}


def join(agents: list[Agent], at: float) -> dict[str, Any]:
    """Let all agents join at the given instant. Returns when the last one has finished."""
    go = threading.Event()
    threads = [threading.Thread(target=agent.join, args=(go,), daemon=True) for agent in agents]
    for thread in threads:
        thread.start()
    time.sleep(max(0.0, at - time.monotonic()))
    go.set()
    for thread in threads:
        thread.join()
    return {"ended": len(agents)}


def follow(agents: list[Agent]) -> dict[str, Any]:
    """Start a polling thread for each agent that needs one."""
    polled = [agent for agent in agents if getattr(agent.handler, "polled", True)]
    for agent in polled:
        threading.Thread(target=agent.follow, daemon=True).start()
    return {"polled": len(polled)}


def answer(agents: list[Agent], request: dict[str, Any]) -> dict[str, Any]:
    if "join" in request:
        return join(agents, request["join"])
    if "joined" in request:
        return {"agents": [agent.joined() for agent in agents]}
    if "follow" in request:
        return follow(agents)
    if "ended" in request:
        return {"ended": [verdict.reason for agent in agents if (verdict := agent.handler.verdict())]}
    return {"connections": {name: asdict(counted) for name, counted in connections().items()}}


def serve(agents: list[Agent], requests: TextIO, answers: TextIO) -> None:
    """Answer requests until their end."""
    print(json.dumps({"made": len(agents)}), file=answers, flush=True)
    for line in requests:
        print(json.dumps(answer(agents, json.loads(line))), file=answers, flush=True)


def fork(setting: Setting, numbers: range) -> list[TextIO]:
    """Fork a process for each agent. Returns the streams through which they are asked."""
    streams: list[TextIO] = []
    for number in numbers:
        here, there = socket.socketpair()
        if os.fork() == 0:
            for stream in (here, *streams):  # otherwise, the processes would not see the end of this one
                stream.close()
            own = there.makefile("rw")
            serve([Agent(node_name(number), MAKERS[setting.launcher](setting, number))], own, own)
            os._exit(0)
        there.close()
        streams.append(here.makefile("rw"))
        here.close()
    return streams


def relay(streams: list[TextIO], requests: TextIO, answers: TextIO) -> None:
    """Pass each request to all processes, and combine their answers."""
    line = ""
    while True:
        total: dict[str, Any] = {}
        for one in map(json.loads, [stream.readline() for stream in streams]):
            for key, value in one.items():
                known = total.get(key)
                total[key] = (
                    value if known is None else {**known, **value} if isinstance(value, dict) else known + value
                )
        print(json.dumps(total), file=answers, flush=True)
        if not (line := requests.readline()):
            return
        for stream in streams:
            stream.write(line)
            stream.flush()


def main() -> None:
    launcher, port, run_id, nodes, first, count, timeout, kind, *more = sys.argv[1:]
    conf = dict(pair.split("=", 1) for text in more for pair in text.split(","))
    setting = Setting(launcher, int(port), run_id, int(nodes), int(first), int(count), int(timeout), conf)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    numbers = range(setting.first, setting.first + setting.count)
    if kind == "FORKS":
        for module in SHARED.get(launcher, ("torch.distributed", "elastic_c10d.create")):
            importlib.import_module(module)  # forked processes share it
        relay(fork(setting, numbers), sys.stdin, sys.stdout)
    else:
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        agents = [Agent(node_name(number), MAKERS[setting.launcher](setting, number)) for number in numbers]
        serve(agents, sys.stdin, sys.stdout)
    os._exit(0)  # skips the handlers' shutdown, which is not measured


if __name__ == "__main__":
    main()
