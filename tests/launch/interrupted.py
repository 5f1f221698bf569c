"""A plugin with a worker starter that is interrupted just after it has started a process."""

import signal

from elastic_core.plugin import WorkerStarterRecord, hookimpl
from elastic_core.workers.process import CommandStarter

started = []


class InterruptedAtTheFork(CommandStarter):
    def start(self, launch):
        started.append(super().start(launch))
        signal.raise_signal(signal.SIGINT)
        return started[-1]


@hookimpl
def elastic_worker_starters():
    return [WorkerStarterRecord("interrupted", "a test", lambda context, work: InterruptedAtTheFork(work.command))]
