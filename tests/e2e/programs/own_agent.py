"""The program's own handler and agent, three times: success, one failure, permanent failure."""

import os
import sys

from torch.distributed.elastic.agent.server import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

SHOWN = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
)


def work(what):
    restarts = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if os.environ["RANK"] == "1" and (what == "never" or (what == "later" and restarts == "0")):
        sys.exit(5)
    return restarts, {name: os.environ[name] for name in SHOWN}


class Telling(LocalElasticAgent):
    def _start_workers(self, worker_group):
        print("start", worker_group.spec.role, len(worker_group.workers))
        return super()._start_workers(worker_group)


if __name__ == "__main__":
    for what in ("at once", "later", "never"):
        handler = get_rendezvous_handler(RendezvousParameters("c10d", f"127.0.0.1:{sys.argv[1]}", what, 1, 1))
        spec = WorkerSpec("trainer", 2, handler, entrypoint=work, args=(what,), max_restarts=1, monitor_interval=0.1)
        agent = Telling(spec, DefaultLogsSpecs(), "spawn" if what == "at once" else "forkserver")
        result = agent.run()
        group = agent.get_worker_group()
        print(what, result.state, result.is_failed(), sorted(result.return_values.items()))
        print({rank: (f.exitcode, f.local_rank, f.signal_name()) for rank, f in result.failures.items() if rank == 1})
        print(group.state, group.group_rank, [(w.global_rank, w.role_rank, w.world_size) for w in group.workers])
        handler.shutdown()
