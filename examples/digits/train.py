"""Train a small network on handwritten digits with DistributedDataParallel, and survive being killed.

This is an ordinary training script. It does not import elastic-core, and runs unchanged under `elastic run` and
`torchrun`:

    elastic run --nproc-per-node=2 --max-restarts=3 train.py --checkpoint digits.pt

A launcher cannot restore lost work: it restarts all workers from the top of this file. Three habits make a restart
cheap:

1. After each epoch, rank 0 saves a checkpoint atomically, so a kill at any moment leaves either the old or the new one.
2. At the start, all ranks resume from the checkpoint that rank 0 finds.
3. The checkpoint does not contain ranks or the world size, which may differ after a restart.
"""

from __future__ import annotations

import argparse
import glob
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn  # before init_process_group: see `main`
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

SEED = 20
GLOBAL_BATCH = 64
LEARNING_RATE = 3e-3


class CheckpointError(Exception):
    """The file at `--checkpoint` cannot be used for this training. The message contains a remedy."""


@dataclass(frozen=True)
class Digits:
    """1,797 images of 8 x 8 pixels, as rows of 64 values from 0 to 1, with their digits as labels."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_data() -> Digits:
    """Load the data set, which is part of scikit-learn. The fixed seed gives every rank the same split."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, labels, test_size=0.2, random_state=SEED, stratify=labels)
    train_images, test_images, train_labels, test_labels = parts
    return Digits(
        train_images=torch.tensor(train_images, dtype=torch.float32),
        train_labels=torch.tensor(train_labels),
        test_images=torch.tensor(test_images, dtype=torch.float32),
        test_labels=torch.tensor(test_labels),
    )


def build_model(width: int) -> nn.Sequential:
    """Build a small convolutional network, from rows of 64 pixels to the scores of 10 digits."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * 4 * 4, 10),
    )


def shard(count: int, epoch: int, rank: int, world_size: int) -> Tensor:
    """Return the indices of this rank's samples in this epoch, in order.

    All ranks shuffle in the same way, because the seed depends only on the epoch, and take every `world_size`-th
    sample. If `count` is not divisible by `world_size`, some samples are used twice, so that all ranks have the same
    number of batches. Otherwise, the ranks with more batches would wait forever for the missing gradients.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(SEED + epoch))
    per_rank = -(-count // world_size)
    wrapped = torch.arange(per_rank * world_size) % count
    return order[wrapped][rank::world_size]


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Replace the checkpoint at `path` atomically. If the process is killed, the previous checkpoint remains.

    The temporary file is in the same folder, because a rename is atomic only within a file system. Its name is unique,
    because an earlier rank 0 that is considered lost may still be writing. The file is synced before the rename;
    otherwise, a power failure could leave an empty file under the checkpoint's name.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(temporary, "xb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def remove_leftovers(path: Path) -> None:
    """Delete the temporary files of processes that were killed while they wrote the checkpoint at `path`.

    If an earlier rank 0 is still writing, its rename fails, as it should.
    """
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Sync the folder, which makes a rename in it durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """Load the checkpoint at `path`; None if there is none. Raises `CheckpointError` for any other file."""
    if not path.exists():
        return None
    try:
        # weights_only: load only tensors, numbers and containers, which cannot run code.
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{path} is not a checkpoint that torch can read ({type(error).__name__}). save_checkpoint never leaves "
            "a partial file, so another program wrote or damaged it. Move it away, or use another --checkpoint."
        ) from error
    if not isinstance(state, dict) or not {"epoch", "model", "optimizer"} <= state.keys():
        raise CheckpointError(
            f"{path} is not a checkpoint of this script: it needs the keys 'epoch', 'model' and 'optimizer'. Use "
            "another --checkpoint."
        )
    return state


def check_shapes(path: Path, found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise `CheckpointError` unless the checkpoint's parameters have the names and shapes of this model's."""
    here = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    there = {name: tuple(tensor.shape) for name, tensor in found.items()}
    differing = [
        f"{name} is {there.get(name, 'absent')} there and {here.get(name, 'absent')} here"
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    ]
    if differing:
        raise CheckpointError(
            f"{path} is a checkpoint of another model: {'; '.join(differing)}. Use the --width that it was trained "
            "with, or another --checkpoint."
        )


def resume(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the checkpoint, if there is one, and return the number of finished epochs.

    Rank 0 reads the file and broadcasts it, so the nodes need no shared folder, and all ranks resume from the same
    epoch.
    """
    message: list[dict[str, Any] | None] = [None]
    if dist.get_rank() == 0:
        remove_leftovers(path)
        message[0] = load_checkpoint(path)
        if message[0] is not None:
            check_shapes(path, message[0]["model"], model.state_dict())
    dist.broadcast_object_list(message, src=0)
    state = message[0]
    if state is None:
        return 0
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, digits: Digits, epoch: int) -> float:
    """Train for one epoch, and return the mean loss over all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = shard(len(digits.train_images), epoch, rank, world_size)
    # The global batch size does not depend on the world size, so the learning rate need not either.
    batches = mine.split(max(1, GLOBAL_BATCH // world_size))
    total = torch.zeros(1)
    for batch in batches:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(digits.train_images[batch]), digits.train_labels[batch])
        loss.backward()
        optimizer.step()
        total += loss.detach()
    dist.all_reduce(total)
    return float(total) / (len(batches) * world_size)


@torch.no_grad()
def accuracy(model: nn.Module, digits: Digits) -> float:
    """Return the percentage of test images that the model recognizes. The test set is small enough for one rank."""
    guesses = model(digits.test_images).argmax(dim=1)
    return 100.0 * float((guesses == digits.test_labels).float().mean())


def train(arguments: argparse.Namespace) -> None:
    """Train this rank's share. Requires an initialized process group."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    restart = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    say(f"rank {rank} is process {os.getpid()}")
    digits = load_data()
    model = build_model(arguments.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    done = resume(arguments.checkpoint, model, optimizer)
    if rank == 0 and done:
        say(f"resumed from epoch {done} of {arguments.checkpoint.name}")
    parallel = DistributedDataParallel(model)
    for epoch in range(done + 1, arguments.epochs + 1):
        loss = train_epoch(parallel, optimizer, digits, epoch)
        if rank == 0:
            state = {"epoch": epoch, "model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save_checkpoint(arguments.checkpoint, state)
            # Printed after the save, so the line means that the epoch is on disk.
            say(
                f"epoch {epoch}/{arguments.epochs} loss {loss:.3f} test accuracy {accuracy(model, digits):.1f} % "
                f"world size {world_size} restart {restart}"
            )
        # Wait for the checkpoint. Otherwise, another rank could exit after the last epoch, and its launcher could
        # report success, while rank 0 is still writing.
        dist.barrier()
    if rank == 0:
        report(accuracy(model, digits), arguments.metrics, epochs=arguments.epochs, restart=restart)


def say(text: str) -> None:
    """Print a line immediately, in a single write. Several workers share a terminal, and under `python -u`, which
    launchers use, `print` would write the text and the newline separately."""
    print(f"{text}\n", end="", flush=True)


def report(percent: float, metrics: Path | None, epochs: int, restart: int) -> None:
    """Print the final accuracy, and write it to `metrics` if given."""
    say(f"final accuracy {percent:.1f} %")
    if metrics is not None:
        metrics.write_text(json.dumps({"accuracy": round(percent, 2), "epochs": epochs, "restarts": restart}) + "\n")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits; resumes from its checkpoint.")
    parser.add_argument("--checkpoint", type=Path, required=True, help="written after each epoch, read at the start")
    parser.add_argument("--epochs", type=int, default=20, help="total number, including those before a restart (20)")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer (32)")
    parser.add_argument("--metrics", type=Path, help="JSON file for the final accuracy")
    return parser.parse_args(argv)


def main() -> None:
    """Join the process group that the launcher's environment variables describe, train, and leave the group.

    torch.distributed.nn, which optimizers import, refers to the process group that exists when it is imported. If that
    happened after `init_process_group`, gloo's threads would outlive `destroy_process_group`, and a thread that is
    still releasing a tensor when Python exits aborts the process: a failure, although all work is done."""
    arguments = parse()
    torch.set_num_threads(1)  # Several workers share the cores; more threads than cores would slow all of them down.
    torch.manual_seed(SEED)
    dist.init_process_group("gloo")
    try:
        train(arguments)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
