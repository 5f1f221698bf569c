"""A job whose agents are killed and replaced repeatedly, for many rounds.

    endurance.py BACKEND PORT MANNER EVERY SEED CHECKPOINTS

Each of the four nodes is a process with a rendezvous handler that acts as an agent does: it joins, waits for the end of
the round, and joins again. Nodes are forked from this process, which has imported everything, so that they start fast.
One node is never killed. With the manner `leads` it asks for rank 0, with `follows` for the last rank. In most steps a
random node reports a failure, which ends the round. In every `EVERY`th step another agent gets SIGKILL, either while
the round runs or just before the nodes join, and an agent of the same name replaces it.

At each round of `CHECKPOINTS`, it prints a line of JSON with the contents of the store and the survivor's resources.
"""

from __future__ import annotations

import base64
import ctypes
import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import urllib.request
from multiprocessing.connection import Connection, wait
from typing import Any

import psutil

HOST = "127.0.0.1"
RUN_ID = "endurance"
NODES, LEAST = 4, 3
INTERVAL_S, ATTEMPTS = 0.1, 5
ROUND_LIMIT_S = 60.0
MOST_DELAY_S = 0.03  # of a kill just before nodes join
SETTLE_S = 4.0  # until dead nodes are removed: leases of 2 s, empty slots, looks
QUIET_S = 1.5  # until stale entries of the last round are removed
SURVIVOR = f"node{NODES - 1}"
PLACES = {"leads": 0, "follows": NODES - 1}
PR_SET_PDEATHSIG = 1
FORK = multiprocessing.get_context("fork")


def live(parameters: Any, pipe: Connection) -> None:
    """Act as a node, in a process that dies with its parent: join, follow the round, join again. Sends each round that
    it has joined through the pipe, and reports a failed worker for each message from it."""
    from elastic_core.errors import ProcessFailure
    from elastic_core.rendezvous import get_rendezvous_handler

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    handler: Any = get_rendezvous_handler(parameters)
    news = threading.Event()
    handler.subscribe(news.set)

    def obey() -> None:
        while True:
            handler.report_failure({0: ProcessFailure(0, os.getpid(), 1, message=pipe.recv())})

    threading.Thread(target=obey, daemon=True).start()
    while True:
        info = handler.next_rendezvous()
        pipe.send((info.formed.number, info.world_size))
        while (verdict := handler.verdict()) is None:
            news.wait(max(0.0, handler.ask_again() - time.monotonic()))
            news.clear()
        if verdict.outcome.value not in ("restart", "fenced"):
            raise RuntimeError(f"the job has ended: {verdict.reason}")


class Agent:
    """A node's process, the pipe to it, and the last round that it has joined, with the round's number of nodes."""

    def __init__(self, parameters: Any) -> None:
        self.pipe, its_end = FORK.Pipe()
        self.process = FORK.Process(target=live, args=(parameters, its_end), daemon=True)
        self.process.start()
        its_end.close()
        self.round = (0, 0)

    def fail(self) -> None:
        """Have it report a failed worker."""
        self.pipe.send("requested")

    def kill(self) -> None:
        """Kill it, as the kernel does when it runs out of memory."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Job:
    """The nodes of a job, by name. They die with this process."""

    def __init__(self, backend: str, port: str, place: int, chance: random.Random) -> None:
        self._backend, self._port, self._place = backend, port, place
        self._chance = chance
        self.killed = 0
        self.agents = {name: self._started(name) for name in (f"node{number}" for number in range(NODES))}

    def _started(self, name: str) -> Agent:
        from elastic_core.interfaces.node import Node
        from elastic_core.rendezvous import RendezvousParameters

        place = self._place if name == SURVIVOR else None
        node = Node(name, name, rank_hint=place, max_restarts=10**9, stop_timeout=1.0)
        parameters = RendezvousParameters(
            self._backend,
            f"{HOST}:{self._port}",
            RUN_ID,
            LEAST,
            NODES,
            HOST,
            node,
            join_timeout=ROUND_LIMIT_S,
            last_call_timeout=1.0,
            keep_alive_interval=INTERVAL_S,
            keep_alive_max_attempt=ATTEMPTS,
            **({"is_host": False} if self._backend == "c10d" else {}),
        )
        return Agent(parameters)

    def come_to_round(self, after: int) -> int:
        """Wait until all nodes are in one round after round `after`, and return its number."""
        until = time.monotonic() + ROUND_LIMIT_S
        while True:
            (number, size), *others = {agent.round for agent in self.agents.values()}
            if number > after and size == NODES and not others:
                return number
            by_pipe = {agent.pipe: name for name, agent in self.agents.items()}
            ready = wait(list(by_pipe), max(0.0, until - time.monotonic()))
            if not ready:
                found = {name: agent.round for name, agent in self.agents.items()}
                raise RuntimeError(f"no round of all nodes within {ROUND_LIMIT_S:g} s after round {after}: {found}")
            for pipe in ready:
                self.agents[by_pipe[pipe]].round = pipe.recv()  # EOFError: it has exited without a kill

    def end_round(self, kill: bool) -> None:
        """End the round by a report, by a kill, or by both at nearly the same moment."""
        victim = self._chance.choice([name for name in self.agents if name != SURVIVOR])
        while_joining = self._chance.random() < 0.5
        if not kill or while_joining:
            self.agents[self._chance.choice(list(self.agents))].fail()
        if kill:
            time.sleep(self._chance.uniform(0.0, MOST_DELAY_S) if while_joining else 0.0)
            self.agents[victim].kill()
            self.agents[victim] = self._started(victim)
            self.killed += 1


def held_by(pid: int) -> dict[str, int]:
    """Resources of a process. Memory is in KiB without file pages, because each new code path touches some of them."""
    process = psutil.Process(pid)
    memory = process.memory_info()
    anonymous = (memory.rss - memory.shared) // 1024
    return {"threads": process.num_threads(), "descriptors": process.num_fds(), "memory_kib": anonymous}


def in_tcp_store(port: str) -> dict[str, int]:
    """The number of keys, and the bytes of keys and values. Leaves no connection open, because nodes that are forked
    later would share it."""
    from torch.distributed import TCPStore

    store = TCPStore(HOST, int(port), is_master=False)
    names = store.list_keys()
    values = store.multi_get(names)
    return {"keys": len(names), "bytes": sum(map(len, [*names, *values]))}


def in_etcd(port: str) -> dict[str, int]:
    """The same and the number of leases, through etcd's JSON gateway, so that gRPC is not active in this process."""

    def ask(method: str, **request: str) -> Any:
        body = json.dumps(request).encode()
        with urllib.request.urlopen(f"http://{HOST}:{port}/v3/{method}", body, timeout=10) as answer:
            return json.load(answer)

    zero = base64.b64encode(b"\0").decode()
    pairs = ask("kv/range", key=zero, range_end=zero).get("kvs", [])
    size = sum(len(base64.b64decode(pair.get(part, ""))) for pair in pairs for part in ("key", "value"))
    return {"keys": len(pairs), "bytes": size, "leases": len(ask("lease/leases").get("leases", []))}


def prepare(backend: str) -> None:
    """Import all modules that nodes need before they are forked."""
    import elastic_core.rendezvous  # noqa: F401

    if backend == "c10d":
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # as in agents: torch logs every wait that ends
        import torch.distributed  # noqa: F401
    else:
        import grpc  # noqa: F401
        from elastic_etcd.client.messages import rpc

        rpc()


def main() -> None:
    backend, port, manner, every, seed, checkpoints = sys.argv[1:]
    prepare(backend)
    look = {"c10d": in_tcp_store, "etcd": in_etcd}[backend]
    job = Job(backend, port, PLACES[manner], random.Random(int(seed)))
    number = steps = 0
    for checkpoint in map(int, checkpoints.split(",")):
        while (number := job.come_to_round(number)) < checkpoint - 1:
            steps += 1
            job.end_round(kill=steps % int(every) == 0)
        time.sleep(SETTLE_S)
        job.end_round(kill=False)
        number = job.come_to_round(number)
        time.sleep(QUIET_S)
        seen = held_by(job.agents[SURVIVOR].process.pid)
        print(json.dumps({"round": number, "killed": job.killed, **seen, **look(port)}), flush=True)
        job.end_round(kill=False)


if __name__ == "__main__":
    main()
