"""An agent whose workers are not processes: it counts how often it is polled."""

import sys

from torch.distributed.elastic.agent.server import RunResult, SimpleElasticAgent, WorkerSpec, WorkerState
from torch.distributed.elastic.multiprocessing import ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler


class Counting(SimpleElasticAgent):
    def __init__(self, spec, states):
        super().__init__(spec, exit_barrier_timeout=1)
        self.states = states
        self.calls = []

    def _start_workers(self, worker_group):
        self.calls.append(f"start {[worker.global_rank for worker in worker_group.workers]}")
        return {worker.local_rank: f"worker {worker.local_rank}" for worker in worker_group.workers}

    def _stop_workers(self, worker_group):
        self.calls.append("stop")

    def _monitor_workers(self, worker_group):
        state = self.states.pop(0)
        failures = {}
        if state is WorkerState.FAILED:
            failures = {
                worker.global_rank: ProcessFailure(worker.local_rank, 1, 7, "<N/A>") for worker in worker_group.workers
            }
        values = {worker.global_rank: "value" for worker in worker_group.workers}
        return RunResult(state, return_values=values if state is WorkerState.SUCCEEDED else {}, failures=failures)

    def _shutdown(self, death_sig=None, timeout=30):
        pass


RUNS, FAILED, DONE, UNWELL = WorkerState.HEALTHY, WorkerState.FAILED, WorkerState.SUCCEEDED, WorkerState.UNHEALTHY

if __name__ == "__main__":
    for number, states in enumerate(([RUNS, DONE], [RUNS, FAILED, RUNS, DONE], [UNWELL, DONE], [FAILED, FAILED])):
        params = RendezvousParameters("c10d", f"127.0.0.1:{sys.argv[1]}", str(number), 1, 1)
        handler = get_rendezvous_handler(params)
        spec = WorkerSpec(
            "trainer", 2, handler, entrypoint="nothing", max_restarts=1, monitor_interval=0.01, master_addr="10.0.0.7"
        )
        agent = Counting(spec, states)
        result = agent.run()
        starts = [call for call in agent.calls if call.startswith("start")]
        group = agent.get_worker_group()
        print(result.state, result.return_values, {r: f.exitcode for r, f in result.failures.items()}, starts)
        print(group.master_addr, [worker.id for worker in group.workers])
        handler.shutdown()
