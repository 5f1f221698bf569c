"""Values, errors and registries by their names."""

import io
import json
from contextlib import redirect_stdout
from datetime import timedelta

from torch.distributed.elastic.agent.server import WorkerState
from torch.distributed.elastic.events import Event, EventSource, NodeState, RdzvEvent, record
from torch.distributed.elastic.metrics import ConsoleMetricHandler, MetricHandler, configure, prof, put_metric
from torch.distributed.elastic.multiprocessing import Std, to_map
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import (
    RendezvousClosedError,
    RendezvousError,
    RendezvousHandler,
    RendezvousHandlerRegistry,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout


def raises(call, *args, **named):
    try:
        call(*args, **named)
    except (ValueError, RuntimeError, TypeError) as error:
        return [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
    return None


class Handler(RendezvousHandler):
    def get_backend(self):
        return "mine"

    def next_rendezvous(self):
        return RendezvousInfo(None, 0, 1, RendezvousStoreInfo("host", 1))

    def is_closed(self):
        return False

    def set_closed(self):
        pass

    def num_nodes_waiting(self):
        return 0

    def get_run_id(self):
        return "job"

    def shutdown(self):
        return True


class Keeping(MetricHandler):
    def __init__(self):
        self.kept = []

    def emit(self, metric_data):
        self.kept.append(
            (metric_data.group_name, metric_data.name, metric_data.value if "dur" not in metric_data.name else 0)
        )


@prof
def measured():
    return 1


if __name__ == "__main__":
    params = RendezvousParameters("mine", "host:1", "job", 1, 2, timeout="7", flag="yes")
    print(params.get("timeout"), params.get_as_int("timeout"), params.get_as_bool("flag"), params.get("none", 3))
    print("ValueError" in raises(RendezvousParameters, "mine", "host:1", "job", 2, 1))
    print("ValueError" in raises(RendezvousParameters, "", "host:1", "job", 1, 1), raises(params.get_as_int, "flag"))
    registry = RendezvousHandlerRegistry()
    registry.register("mine", lambda params: Handler())
    print(type(registry.create_handler(params)).__name__, "ValueError" in raises(registry.register, "mine", Handler))
    print("ValueError" in raises(registry.create_handler, RendezvousParameters("none", "host:1", "job", 1, 1)))
    registry.register("theirs", lambda params: Handler())
    print("RuntimeError" in raises(registry.create_handler, RendezvousParameters("theirs", "host:1", "job", 1, 1)))
    timeout = RendezvousTimeout(join=timedelta(seconds=5))
    print(timeout.join, "ValueError" in raises(RendezvousTimeout, join=timedelta(seconds=-1)))
    print(issubclass(RendezvousClosedError, RendezvousError), Handler().use_agent_store)
    print([(state.name, WorkerState.is_running(state)) for state in WorkerState])
    print(Std.from_str("0:3,1:1"), Std.from_str("2") == Std.ERR, to_map(Std.OUT, 2), to_map({0: Std.ERR}, 2))
    print("ValueError" in raises(Std.from_str, "7"))
    failure = ProcessFailure(1, 11, -9, "<N/A>")
    error = ChildFailedError("train.py", {3: failure})
    print(
        failure.signal_name(),
        error.get_first_failure()[0],
        error.name,
        "train.py" in str(error),
        "SIGKILL" in str(error),
    )
    event = Event("round", EventSource.AGENT, 5, {"rank": 1})
    print(json.loads(str(event)), Event.deserialize(event.serialize()) == event)
    rdzv = RdzvEvent("join", "job", "joined", "host", 7, NodeState.RUNNING, rank=1)
    print(json.loads(rdzv.serialize()), RdzvEvent.deserialize(rdzv.serialize()) == rdzv)
    record(event)
    keeping = Keeping()
    configure(keeping)
    put_metric("loss", 3)
    put_metric("loss", 4, "mine")
    measured()
    print([(name.rpartition("__main__.")[2], value) for _, name, value in keeping.kept], keeping.kept[1][0])
    with redirect_stdout(io.StringIO()) as shown:
        configure(ConsoleMetricHandler(), "console")
        put_metric("loss", 5, "console")
    print("loss=5" in shown.getvalue())
