"""The output of one round: its log folder, the workers' pipes and the pump that serves them."""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING

from elastic_core.errors import ConfigurationError, Problem
from elastic_core.support import files, forks
from elastic_core.workers.channel import Channel, ConsoleSink, FileSink, OwnFile, Screen
from elastic_core.workers.output import OutputPump
from elastic_core.workers.process import cannot_start, remedy
from elastic_core.workers.streams import Stream, StreamPlan, plan_stream

if TYPE_CHECKING:
    from pathlib import Path

    from elastic_core.clock import Duration
    from elastic_core.interfaces.workers import RoundPlan
    from elastic_core.workers.channel import Report
    from elastic_core.workers.output import Delivery
    from elastic_core.workers.streams import OutputPolicy, Placement


class RoundOutput:
    """Opened before the workers start; `stdio` gives each its pipes or files; `begin` when all have started; then
    `finish`.

    Raises ConfigurationError when a log file cannot be opened, or no more files at all.
    """

    def __init__(
        self, plan: RoundPlan, policy: OutputPolicy, folder: Path, report: Report, placement: Placement | None = None
    ) -> None:
        self._report = report
        self._consoles = {stream: ConsoleSink(int(stream)) for stream in Stream}
        self._screen = Screen()
        self._filtered: dict[Path, FileSink] = {}
        self._channels: dict[int, Channel] = {}
        self._write_ends: dict[tuple[int, Stream], int] = {}
        self._by_stream: dict[tuple[int, Stream], Channel] = {}
        self._own_files: dict[tuple[int, Stream], OwnFile] = {}
        self._files: dict[int, tuple[Path, ...]] = {}
        try:
            self._open(plan, policy, folder, placement)
            self._pump = OutputPump(self._channels)
            self._pipes = {_identity(fd) for fd in self._owned()}
        except OSError as error:
            self._abandon()
            asked_for = bool(policy.log_dir or policy.placer)
            raise (cannot_start(error, len(plan.ranks)) if remedy(error) else unwritable(error, asked_for)) from error
        except BaseException:
            self._abandon()
            raise
        forks.drop_in_forks(self)

    def stdio(self, local_rank: int) -> tuple[int | None, int | None]:
        """The descriptors for the worker's stdout and stderr; None to inherit the agent's."""
        out, err = (self._end_for((local_rank, stream)) for stream in Stream)
        return out, err

    def _end_for(self, place: tuple[int, Stream]) -> int | None:
        own = self._own_files.get(place)
        return own.descriptor if own else self._write_ends.get(place)

    def begin(self) -> None:
        """Close our copies of the write ends, now that all workers have theirs, so that a stream ends with its last
        writer. Then start the pump."""
        self._close_write_ends()
        self._pump.start()

    def drain(self) -> int:
        """Read the rest, now that all writers have gone. Returns a descriptor that becomes readable when the rest has
        been delivered."""
        self._pump.end()
        return self._pump.done

    def delivered(self) -> int:
        """Bytes read and bytes taken by the console so far; it grows for as long as output still moves."""
        return self._pump.moved + sum(console.written for console in self._consoles.values())

    def finish(self) -> Delivery:
        """Release everything; see `OutputPump.finish`."""
        self._close_write_ends()
        self._pump.end()
        delivery = self._pump.finish()
        for sink in self._filtered.values():
            sink.close()
        return delivery

    def close(self) -> None:
        """After `finish`, when nothing more is to be read from the workers' files."""
        for file in self._own_files.values():
            file.close()
        self._own_files.clear()

    def tail(self, local_rank: int) -> tuple[str, ...]:
        """The last stderr lines of the worker; complete after `finish`."""
        source = self._stderr(local_rank)
        return source.tail() if source else ()

    def files(self, local_rank: int) -> tuple[Path, ...]:
        """The files of the worker's output, if there are any; stdout before stderr."""
        return self._files.get(local_rank, ())

    def expect_dump(self, local_rank: int) -> None:
        """The worker is about to be asked for its stacks."""
        if source := self._stderr(local_rank):
            source.expect_dump()

    def dump(self, local_rank: int) -> str:
        """The stacks that faulthandler wrote to its stderr, as far as they have been moved."""
        source = self._stderr(local_rank)
        return source.dump() if source else ""

    def catch_up(self, patience: Duration) -> None:
        """Wait until all that the workers have written by now has been moved, at most `patience` seconds."""
        self._pump.catch_up(patience)

    def written(self, local_rank: int) -> int:
        """Bytes that the worker has written so far: to files, or moved through the pump."""
        channels = (self._by_stream.get((local_rank, stream)) for stream in Stream)
        files = (self._own_files.get((local_rank, stream)) for stream in Stream)
        return sum(channel.taken for channel in channels if channel) + sum(file.written for file in files if file)

    def _stderr(self, local_rank: int) -> Channel | OwnFile | None:
        place = local_rank, Stream.ERR
        return self._own_files.get(place) or self._by_stream.get(place)

    @property
    def busy(self) -> bool:
        """Whether some output is on its way to the console or a file right now."""
        return self._pump.busy

    def drop(self) -> None:
        """Close, in a forked child, every descriptor of this round: a worker has its own ends by then, and none of
        these may outlive its siblings or the agent. The pump works on while other threads fork, so a number may have
        been closed meanwhile and belong to another file."""
        for fd in self._owned():
            with contextlib.suppress(OSError):
                if _identity(fd) in self._pipes:
                    os.close(fd)

    def _owned(self) -> list[int]:
        own = (file.descriptor for file in self._own_files.values())
        return [*self._write_ends.values(), *own, *self._pump.owned()]

    def _open(self, plan: RoundPlan, policy: OutputPolicy, folder: Path, placement: Placement | None) -> None:
        for ranks in plan.ranks:
            for stream in Stream:
                stream_plan = plan_stream(stream, ranks, plan, policy, folder, placement)
                if stream_plan.captured:
                    self._open_stream(ranks.local, stream, stream_plan)

    def _open_stream(self, local_rank: int, stream: Stream, plan: StreamPlan) -> None:
        if plan.file is not None:
            self._files[local_rank] = (*self.files(local_rank), plan.file)
        path = plan.only_file
        if path is not None and (path.is_file() or not path.exists()):  # not a device, which cannot be read back
            self._own_files[local_rank, stream] = OwnFile(path)
        else:
            self._open_channel(local_rank, stream, plan)

    def _open_channel(self, local_rank: int, stream: Stream, plan: StreamPlan) -> None:
        channel = Channel(plan, self._consoles[stream], self._filtered_sink(plan), self._report, self._screen)
        try:
            read_end, self._write_ends[local_rank, stream] = os.pipe()
        except OSError:
            channel.close()
            raise
        self._channels[read_end] = self._by_stream[local_rank, stream] = channel

    def _filtered_sink(self, plan: StreamPlan) -> FileSink | None:
        if plan.filtered is None:
            return None
        if plan.filtered not in self._filtered:
            self._filtered[plan.filtered] = FileSink(plan.filtered, self._report)
        return self._filtered[plan.filtered]

    def _close_write_ends(self) -> None:
        for fd in self._write_ends.values():
            os.close(fd)
        self._write_ends.clear()

    def _abandon(self) -> None:
        self._close_write_ends()
        self.close()
        for fd, channel in self._channels.items():
            channel.close()
            os.close(fd)
        for sink in self._filtered.values():
            sink.close()


def _identity(fd: int) -> tuple[int, int]:
    """What the kernel knows a pipe by; the same for both of its ends."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def unwritable(error: OSError, log_dir: bool) -> ConfigurationError:
    """The error for a file or folder that cannot be made. `log_dir`: the user chose the folder; else it is
    temporary."""
    found = f"found that {error.filename} cannot" if error.filename else "found none"
    return ConfigurationError(
        Problem(
            "--log-dir" if log_dir else "TMPDIR",
            f"expected a folder that can be written, {found}: {error.strerror or error}; "
            "choose another folder, or see to its permissions and free space",
        )
    )


def make_folder(folder: Path, latest: Path | None) -> None:
    """Make the round's folder, below that of `latest`, and point `latest` at it; None for a temporary folder. Raises
    ConfigurationError."""
    try:
        if latest is None:
            folder.mkdir(parents=True, exist_ok=True)
        else:
            files.make_folders(latest.parent, *folder.relative_to(latest.parent).parts)
    except OSError as error:
        raise unwritable(error, log_dir=latest is not None) from error
    if latest is not None:
        _point(latest, folder)


def _point(link: Path, folder: Path) -> None:
    """Replace the link in one step, so that it always leads to a folder. A file system without links, or a folder of
    that name, costs the convenience but not the job."""
    fresh = link.with_name(f".{link.name}.{secrets.token_hex(8)}")  # other nodes may share the folder
    try:
        fresh.symlink_to(os.path.relpath(folder, link.parent), target_is_directory=True)
        fresh.replace(link)
    except OSError:
        fresh.unlink(missing_ok=True)
