"""The training script of the digits example does what its comments promise: intact checkpoints, resuming, accuracy."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "digits" / "train.py"
LIMIT_S = 300

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def train():
    """The script as a module; in a fixture, so that collecting the tests needs no torch."""
    spec = importlib.util.spec_from_file_location("digits_train", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def state(epoch):
    return {"epoch": epoch, "model": {}, "optimizer": {}}


def run_alone(*arguments, prefix=()):
    """Run the script without any launcher: one process, and the environment that DDP requires."""
    # Port 0 is enough, as no other rank has to know the port.
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    # One thread, as with a launcher: OpenMP threads wait by spinning, which takes minutes on a busy machine.
    environment = {**os.environ, "RES_OPTIONS": "timeout:1 attempts:1", "OMP_NUM_THREADS": "1", **alone}
    command = [sys.executable, *prefix, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)


class TestShard:
    @pytest.mark.parametrize("world_size", [1, 2, 3, 8])
    @pytest.mark.parametrize("count", [5, 24, 1437])
    def test_ranks_share_all_samples_equally(self, train, count, world_size):
        shards = [train.shard(count, 1, rank, world_size).tolist() for rank in range(world_size)]
        assert {len(shard) for shard in shards} == {-(-count // world_size)}
        assert {sample for shard in shards for sample in shard} == set(range(count))

    def test_order_depends_only_on_the_epoch(self, train):
        first, again, other = (train.shard(100, epoch, 0, 2).tolist() for epoch in (1, 1, 2))
        assert first == again
        assert first != other


class TestCheckpoint:
    def test_save_and_load_leave_only_the_checkpoint(self, train, tmp_path):
        path = tmp_path / "digits.pt"
        train.save_checkpoint(path, state(1))
        train.save_checkpoint(path, state(2))
        assert train.load_checkpoint(path) == state(2)
        assert list(tmp_path.iterdir()) == [path]

    def test_error_while_saving_keeps_the_old_checkpoint(self, train, tmp_path):
        path = tmp_path / "digits.pt"
        train.save_checkpoint(path, state(1))
        with pytest.raises(Exception, match="pickle"):
            train.save_checkpoint(path, {**state(2), "model": lambda: None})
        assert train.load_checkpoint(path) == state(1)
        assert list(tmp_path.iterdir()) == [path]

    # The critical moments: written but not on the disk, and on the disk but under the temporary name.
    @pytest.mark.parametrize("moment", ["fsync", "replace"])
    def test_kill_while_saving_keeps_the_old_checkpoint(self, train, tmp_path, moment):
        path = tmp_path / "digits.pt"
        program = (
            "import os, signal, sys; from pathlib import Path\n"
            "folder, path, moment = sys.argv[1:]\n"
            "sys.path.insert(0, folder)\n"
            "import train\n"
            "train.save_checkpoint(Path(path), {'epoch': 1, 'model': {}, 'optimizer': {}})\n"
            "setattr(os, moment, lambda *_: os.kill(os.getpid(), signal.SIGKILL))\n"
            "train.save_checkpoint(Path(path), {'epoch': 2, 'model': {}, 'optimizer': {}})\n"
        )
        command = [sys.executable, "-c", program, str(SCRIPT.parent), str(path), moment]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert train.load_checkpoint(path) == state(1)
        assert len(list(tmp_path.iterdir())) == 2, "the killed process could not tidy up"
        train.remove_leftovers(path)
        assert list(tmp_path.iterdir()) == [path]

    def test_damaged_checkpoint_is_an_error(self, train, tmp_path):
        path = tmp_path / "digits.pt"
        train.save_checkpoint(path, state(1))
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(train.CheckpointError, match=r"digits\.pt is not a checkpoint that torch can read"):
            train.load_checkpoint(path)

    def test_checkpoint_with_code_is_refused(self, train, tmp_path):
        path = tmp_path / "digits.pt"
        train.save_checkpoint(path, {**state(1), "model": Path("x")})
        with pytest.raises(train.CheckpointError, match="not a checkpoint that torch can read"):
            train.load_checkpoint(path)

    def test_checkpoint_of_another_model_names_both_shapes(self, train):
        found, expected = train.build_model(16).state_dict(), train.build_model(32).state_dict()
        with pytest.raises(train.CheckpointError, match=r"1\.weight is \(16, 1, 3, 3\) there and \(32, 1, 3, 3\) here"):
            train.check_shapes(Path("digits.pt"), found, expected)


def test_no_gloo_thread_is_left_that_could_abort_the_exit(tmp_path):
    program = (
        "import os, runpy, sys; del sys.argv[0]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "print([open(f'/proc/self/task/{task}/comm').read().strip() for task in os.listdir('/proc/self/task')])"
    )
    done = run_alone("--checkpoint", tmp_path / "digits.pt", "--epochs", 1, prefix=("-c", program))
    assert done.returncode == 0, done.stderr
    assert "python" in done.stdout.splitlines()[-1]
    assert "gloo" not in done.stdout


@pytest.mark.nightly
def test_training_resumes_and_reaches_its_accuracy(tmp_path):
    checkpoint, metrics = tmp_path / "digits.pt", tmp_path / "metrics.json"

    first = run_alone("--checkpoint", checkpoint, "--epochs", 4)
    assert first.returncode == 0, first.stderr
    assert "epoch 1/4 loss" in first.stdout
    assert "resumed" not in first.stdout

    second = run_alone("--checkpoint", checkpoint, "--epochs", 12, "--metrics", metrics)
    assert second.returncode == 0, second.stderr
    assert "resumed from epoch 4 of digits.pt" in second.stdout
    assert "epoch 4/12" not in second.stdout
    assert "epoch 5/12" in second.stdout
    result = json.loads(metrics.read_text())
    assert result["accuracy"] >= 95
    assert f"final accuracy {result['accuracy']:.1f} %" in second.stdout

    other_model = run_alone("--checkpoint", checkpoint, "--epochs", 12, "--width", 16)
    assert other_model.returncode != 0
    assert "is a checkpoint of another model" in other_model.stderr
