"""Train a small network on handwritten digits with DistributedDataParallel, and survive being killed.

An ordinary training script: it imports nothing of elastic-core and runs unchanged under `elastic run` and `torchrun`:

    elastic run --nproc-per-node=2 --max-restarts=3 train.py --checkpoint digits.pt

A launcher cannot bring lost work back; it starts all workers again from the top of this file. So the script keeps the
three habits that make a restart cheap:

1. After each epoch, rank 0 saves a checkpoint such that a kill at any moment leaves the old or the new one, whole.
2. At the start, every rank resumes from what rank 0 finds there.
3. Nothing is remembered about who took part: rank and world size are read anew, and may differ after a restart.
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
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

SEED = 20
GLOBAL_BATCH = 64
LEARNING_RATE = 3e-3


class CheckpointError(Exception):
    """The file at `--checkpoint` cannot continue this training. Says what to do instead."""


@dataclass(frozen=True)
class Digits:
    """1,797 images of 8 x 8 pixels as rows of 64 values from 0 to 1, and the digit that each of them shows."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_data() -> Digits:
    """The data set comes with scikit-learn. The fixed seed makes all ranks, and all restarts, split it alike."""
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
    """A small convolutional network: rows of 64 pixels in, scores of the 10 digits out."""
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
    """Which of `count` samples this rank sees in this epoch, in order.

    All ranks shuffle alike, because the seed depends on the epoch only, and take every `world_size`-th sample. Some
    samples come twice where `count` does not divide: a rank with one batch less than the others would leave them
    waiting for its gradients for ever.
    """
    order = torch.randperm(count, generator=torch.Generator().manual_seed(SEED + epoch))
    per_rank = -(-count // world_size)
    wrapped = torch.arange(per_rank * world_size) % count
    return order[wrapped][rank::world_size]


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Replace the checkpoint at `path` in one step. A process killed in here leaves the previous one as it was.

    The temporary file is in the same folder, because a rename is atomic only within a file system. It has a name of
    its own, because a rank 0 that was given up for lost may still be writing. Its bytes reach the disk before the
    rename does; otherwise a power cut could leave the new name on an empty file.
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

    A rank 0 of an earlier start that is still writing finds its file gone and fails, as it should.
    """
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        temporary.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """The rename itself is an entry of the folder, and is on the disk when the folder is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_checkpoint(path: Path) -> dict[str, Any] | None:
    """The checkpoint at `path`, or None where there is none yet. Raises `CheckpointError` for any other file."""
    if not path.exists():
        return None
    try:
        # weights_only: tensors, numbers and containers, nothing that could run code on loading.
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise CheckpointError(
            f"{path} is not a checkpoint that torch can read ({type(error).__name__}). save_checkpoint never leaves "
            "half a file, so something else wrote it or damaged it. Move it away, or give another --checkpoint."
        ) from error
    if not isinstance(state, dict) or not {"epoch", "model", "optimizer"} <= state.keys():
        raise CheckpointError(
            f"{path} holds something else than a checkpoint of this script, which has 'epoch', 'model' and "
            "'optimizer'. Give another --checkpoint."
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
            f"{path} is a checkpoint of another model: {'; '.join(differing)}. Start with the --width that it was "
            "trained with, or give another --checkpoint."
        )


def resume(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Continue from the checkpoint, if there is one; returns how many epochs are done.

    Rank 0 reads the file and sends it to the others: ranks on other nodes need no shared folder, and all of them are
    sure to continue from the same epoch.
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
    """One pass over the training images, all ranks together; returns the mean loss over all ranks."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = shard(len(digits.train_images), epoch, rank, world_size)
    # The batch of all ranks together keeps its size, so that the learning rate fits any world size.
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
    """Percentage of the test images that are recognised. Small enough for one rank alone."""
    guesses = model(digits.test_images).argmax(dim=1)
    return 100.0 * float((guesses == digits.test_labels).float().mean())


def train(arguments: argparse.Namespace) -> None:
    """What each rank does between joining the process group and leaving it."""
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
            # Said when it is on the disk: whoever reads this line knows that the epoch will not be lost.
            say(
                f"epoch {epoch}/{arguments.epochs} loss {loss:.3f} test accuracy {accuracy(model, digits):.1f} % "
                f"world size {world_size} restart {restart}"
            )
        # Nobody runs ahead of the checkpoint. Without it another rank could leave after the last epoch and let its
        # launcher report success while rank 0 is still writing.
        dist.barrier()
    if rank == 0:
        report(accuracy(model, digits), arguments.metrics, epochs=arguments.epochs, restart=restart)


def say(text: str) -> None:
    """Print a line at once, and in one piece: several workers share a terminal, and `python -u`, which launchers use,
    would write the line and its end separately."""
    print(f"{text}\n", end="", flush=True)


def report(percent: float, metrics: Path | None, epochs: int, restart: int) -> None:
    """Say how it ended, to people and, with `--metrics`, to programs."""
    say(f"final accuracy {percent:.1f} %")
    if metrics is not None:
        metrics.write_text(json.dumps({"accuracy": round(percent, 2), "epochs": epochs, "restarts": restart}) + "\n")


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train on handwritten digits; resumes from its checkpoint.")
    parser.add_argument("--checkpoint", type=Path, required=True, help="written after each epoch, read at the start")
    parser.add_argument("--epochs", type=int, default=20, help="in all, those before a restart included (20)")
    parser.add_argument("--width", type=int, default=32, help="channels of the first layer (32)")
    parser.add_argument("--metrics", type=Path, help="JSON file for the final accuracy")
    return parser.parse_args(argv)


def main() -> None:
    """Join the process group that the launcher describes in the environment, train, and leave it."""
    arguments = parse()
    torch.set_num_threads(1)  # Several workers share the cores; more threads than cores slow all of them down.
    torch.manual_seed(SEED)
    dist.init_process_group("gloo")
    try:
        train(arguments)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
