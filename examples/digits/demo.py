"""Kill a worker in the middle of a training job, and watch the job recover.

    python demo.py                         under `elastic run`
    python demo.py --launcher torchrun     the same job under torchrun, for comparison

The demo starts `train.py` with two workers in a temporary folder, kills rank 1 when half of the epochs are saved, and
prints what happens. It exits with 0 only if the job resumes from its checkpoint, finishes, and recognizes 95 % of the
test images.

The demo stops only the processes that it has started. It signals workers through pidfds, which it opens when they
report, so a reused process ID cannot make it kill another process. If pidfds are not available, it signals by process
ID, after checking that the process has the worker's start time.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

EPOCHS = 20
KILL_AFTER = EPOCHS // 2
VICTIM = 1
GOOD_ENOUGH = 95.0
TIME_LIMIT_S = 120.0
STOP_LIMIT_S = 15.0

# Used with `search`, because a launcher may prefix its workers' lines.
WORKER_LINE = re.compile(r"rank (\d+) is process (\d+)")
RESUMED_LINE = re.compile(r"resumed from epoch (\d+)")
EPOCH_LINE = re.compile(r"epoch (\d+)/\d+ loss .* restart (\d+)")


class DemoError(Exception):
    """The job did not behave as this demo promises."""


@dataclass
class Account:
    """Observations for the summary at the end. Times are seconds since the start."""

    killed_at: float | None = None
    resumed_from: int | None = None
    first_epoch_after: int | None = None
    back_at: float | None = None


@dataclass(frozen=True)
class Worker:
    """A process that has reported its rank. `handle`: its pidfd; None if pidfds are not available."""

    pid: int
    handle: int | None
    start: str

    @classmethod
    def of(cls, pid: int) -> Worker:
        """Return the process that currently has this ID. Raises `ProcessLookupError` if there is none."""
        start = start_time(pid)
        try:
            return cls(pid, os.pidfd_open(pid), start)
        except ProcessLookupError:
            raise
        except (AttributeError, OSError):
            return cls(pid, None, start)

    def kill(self) -> None:
        """Send SIGKILL. Does nothing if the process has exited."""
        try:
            if self.handle is not None:
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
            elif start_time(self.pid) == self.start:
                os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

    def release(self) -> None:
        """Close the handle."""
        if self.handle is not None:
            os.close(self.handle)


class Job:
    """A launcher and its workers, as a context manager that stops all of them at the end."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command = command
        self._folder = folder
        self._workers: dict[int, Worker] = {}
        self._all_workers: list[Worker] = []
        self._lines: queue.Queue[str | None] = queue.Queue()

    def __enter__(self) -> Job:
        self.started = time.monotonic()
        # Workers look up the names of their peers' addresses. Without a working name server, each lookup would take 5 s
        # or more. These options limit it to a second.
        environment = {"RES_OPTIONS": "timeout:1 attempts:1", **os.environ}
        self._process = subprocess.Popen(
            self._command,
            cwd=self._folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process.poll() is None:
            self._process.terminate()  # The launcher stops its workers before it exits.
            try:
                self._process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(STOP_LIMIT_S)
        for worker in self._all_workers:
            worker.kill()
            worker.release()

    def _read(self) -> None:
        # In a separate thread, because Queue.get has a timeout, unlike a read from a pipe.
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.rstrip())
        self._lines.put(None)

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self.started

    def lines(self) -> Iterator[str]:
        """Yield the output of launcher and workers until all have exited. Raises `DemoError` after `TIME_LIMIT_S`."""
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, TIME_LIMIT_S - self.elapsed()))
            except queue.Empty:
                raise DemoError(f"the job is not done after {TIME_LIMIT_S:.0f} s") from None
            if line is None:
                return
            if found := WORKER_LINE.search(line):
                self._remember(rank=int(found[1]), pid=int(found[2]))
            yield line

    def _remember(self, rank: int, pid: int) -> None:
        try:
            worker = Worker.of(pid)
        except ProcessLookupError:
            return  # It has already exited.
        self._all_workers.append(worker)
        self._workers[rank] = worker

    def kill(self, rank: int) -> int:
        """Kill the newest worker of this rank. Returns its process ID."""
        if rank not in self._workers:
            raise DemoError(f"rank {rank} has not reported its process ID")
        self._workers[rank].kill()
        return self._workers[rank].pid

    def wait(self) -> int:
        """Return the launcher's exit code. The wait is short, because its output has already ended."""
        return self._process.wait(STOP_LIMIT_S)


def start_time(pid: int) -> str:
    """Return the process's start time as in /proc; empty if it is unknown. Raises `ProcessLookupError`."""
    os.kill(pid, 0)
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    return text.rpartition(")")[2].split()[19]  # The process name before the parenthesis may contain anything.


def say(text: str) -> None:
    """Print one of the demo's own messages, highlighted among the job's output."""
    bold, plain = ("\033[1m", "\033[0m") if sys.stdout.isatty() and "NO_COLOR" not in os.environ else ("", "")
    print(f"{bold}>>> {text}{plain}", flush=True)


def launcher_command(launcher: str) -> list[str]:
    """Return the command line of the launcher that is installed next to this Python."""
    program = Path(sys.executable).with_name(launcher)
    if not program.exists():
        package = "elastic-core" if launcher == "elastic" else "torch"
        raise DemoError(f"no {launcher} next to {sys.executable}: pip install {package} into this environment")
    if launcher == "elastic":
        return [str(program), "run", "--nproc-per-node=2", "--max-restarts=3", "--log-format", "human"]
    return [str(program), "--nproc-per-node=2", "--max-restarts=3"]


def watch(job: Job) -> Account:
    """Print the job's output, kill a worker when half of the epochs are saved, and record the recovery."""
    account = Account()
    for line in job.lines():
        now = job.elapsed()
        print(f"{now:7.1f} s  {line}", flush=True)
        if found := RESUMED_LINE.search(line):
            account.resumed_from = int(found[1])
        if not (found := EPOCH_LINE.search(line)):
            continue
        epoch, restart = int(found[1]), int(found[2])
        if account.killed_at is None and epoch >= KILL_AFTER:
            account.killed_at = job.elapsed()
            pid = job.kill(VICTIM)
            say(f"Epoch {epoch} is saved. Sent SIGKILL to rank {VICTIM}, process {pid}.")
        elif account.killed_at is not None and account.back_at is None and restart > 0:
            account.back_at, account.first_epoch_after = now, epoch
            say(f"Training continues, {now - account.killed_at:.1f} s after the kill.")
    return account


def judge(account: Account, exit_code: int, metrics: Path) -> float:
    """Return the final accuracy. Raises `DemoError` for the first promise that the job did not keep."""
    if exit_code != 0:
        raise DemoError(f"the launcher exited with code {exit_code}")
    if account.killed_at is None:
        raise DemoError(f"the job ended before epoch {KILL_AFTER}, so no worker was killed")
    if account.back_at is None or account.resumed_from is None:
        raise DemoError("the job succeeded, but restarted workers finished no epoch")
    if account.resumed_from < KILL_AFTER:
        raise DemoError(f"epoch {KILL_AFTER} was saved, but the job resumed from epoch {account.resumed_from}")
    if not metrics.exists():
        raise DemoError("the launcher reported success, but rank 0 wrote no metrics")
    accuracy = float(json.loads(metrics.read_text())["accuracy"])
    if accuracy < GOOD_ENOUGH:
        raise DemoError(f"the final accuracy is {accuracy:.1f} %, less than {GOOD_ENOUGH:.0f} %")
    return accuracy


def show(launcher: str, folder: Path) -> None:
    """Run the job in `folder`, and print the summary."""
    shutil.copy(Path(__file__).with_name("train.py"), folder)
    command = launcher_command(launcher)
    command += ["train.py", "--checkpoint", "digits.pt", "--metrics", "metrics.json", "--epochs", str(EPOCHS)]
    say("Two workers train on handwritten digits, and one of them will be killed. In a temporary folder:")
    print(f"\n    {' '.join([launcher, *command[1:]])}\n", flush=True)
    with Job(command, folder) as job:
        account = watch(job)
        accuracy = judge(account, job.wait(), folder / "metrics.json")
        total = job.elapsed()
    assert account.killed_at is not None and account.back_at is not None
    print()
    say(f"Rank {VICTIM} was killed after {account.killed_at:.1f} s.")
    say(
        f"{account.back_at - account.killed_at:.1f} s later, two new workers had imported torch, resumed from epoch "
        f"{account.resumed_from}, and finished epoch {account.first_epoch_after}."
    )
    say(f"The job finished after {total:.1f} s. Final accuracy: {accuracy:.1f} %.")


def main() -> int:
    """Run the demo. Returns 0 if the job behaved as promised, otherwise 1."""
    parser = argparse.ArgumentParser(description="Kill a worker of a training job, and watch the job recover.")
    parser.add_argument("--launcher", choices=["elastic", "torchrun"], default="elastic")
    arguments = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory(prefix="digits-demo-") as folder:
            show(arguments.launcher, Path(folder))
    except DemoError as error:
        say(f"The demo failed: {error}.")
        return 1
    except KeyboardInterrupt:
        say("Interrupted.")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
