"""Workers that need their child processes to save can do so however they are stopped, and no shared memory remains."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from job_of_nodes import SOON, eventually, kill_node

pytestmark = pytest.mark.integration

TRAIN = """
import multiprocessing, os, signal, sys, time
from pathlib import Path

NAME = f"{sys.argv[1]}-{os.environ.get('LOCAL_RANK', 0)}"
asked = False


def ask(signum, frame):
    global asked
    asked = True


def write(name, text):
    Path(name + ".part").write_text(str(text))
    Path(name + ".part").replace(name)


def manager():
    values = multiprocessing.Manager().dict()

    def step():
        values["step"] = values.get("step", 0) + 1

    return step, lambda: write("saved-" + NAME, values["step"])


def pool():
    made = multiprocessing.Pool(1)
    return (lambda: made.apply(time.sleep, (0,))), lambda: made.apply(write, ("saved-" + NAME, 1))


def after_the_other():
    def save():
        while NAME == "a-1" and not os.path.exists("saved-a-0"):
            time.sleep(0.01)
        write("saved-" + NAME, 1)

    return (lambda: None), save


def loader():
    from torch.utils.data import DataLoader

    batches = iter(DataLoader(range(10**9), batch_size=1, num_workers=2))
    return (lambda: next(batches)), lambda: write("saved-" + NAME, next(batches))


def work():
    step, save = globals()[os.environ["KIND"]]()
    signal.signal(signal.SIGTERM, ask)
    step()
    write(f"ready-{NAME}", os.getpid())
    while not asked:
        step()
        time.sleep(0.01)
        if os.path.exists(f"fail-{NAME}"):
            os._exit(3)
    save()


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:
        work()
    else:
        from elastic_core.launch import LaunchConfig, elastic_launch

        elastic_launch(LaunchConfig(1, 1, 1), work)()
"""


@pytest.fixture
def train(elastic):
    return elastic.script("train.py", TRAIN)


def ready(elastic, name):
    """Wait until the worker trains. Returns its process id."""
    path = elastic.cwd / f"ready-{name}"
    eventually(path.exists, f"{name} to be ready")
    return int(path.read_text())


def two_workers(elastic, kind, *words):
    """Start an agent whose two workers train."""
    agent = elastic.start("run", "--nproc-per-node=2", *words, KIND=kind)
    ready(elastic, "a-0")
    ready(elastic, "a-1")
    return agent


def saved(elastic, name):
    return (elastic.cwd / f"saved-{name}").exists()


@pytest.mark.parametrize(
    ("kind", "flags"),
    [("manager", ()), ("pool", ()), ("pool", ("--warm-start",)), pytest.param("loader", (), marks=pytest.mark.torch)],
)
def test_workers_save_after_sigterm_to_the_agent(elastic, train, kind, flags):
    agent = two_workers(elastic, kind, *flags, train, "a")
    agent.send_signal(signal.SIGTERM)
    assert elastic.finish(agent).code == 128 + signal.SIGTERM
    assert saved(elastic, "a-0")
    assert saved(elastic, "a-1")


def test_function_workers_save_after_sigterm(elastic, train):
    program = elastic.program(sys.executable, train, "a", KIND="manager")
    ready(elastic, "a-0")
    program.send_signal(signal.SIGTERM)
    assert "SignalException: stopped by SIGTERM" in elastic.finish(program).err
    assert saved(elastic, "a-0")


SHELL = """
if [ $LOCAL_RANK = 0 ]; then {python} train.py a; exit 1; fi
exec {python} train.py a
"""


def test_orphaned_program_saves_while_its_peer_saves(elastic, train):
    script = elastic.script("run.sh", SHELL.format(python=sys.executable))
    agent = two_workers(elastic, "after_the_other", "--no-python", "sh", script)
    agent.send_signal(signal.SIGTERM)
    assert elastic.finish(agent).code == 128 + signal.SIGTERM
    assert saved(elastic, "a-0")
    assert saved(elastic, "a-1")


def test_worker_saves_when_its_peer_fails(elastic, train):
    agent = two_workers(elastic, "pool", train, "a")
    (elastic.cwd / "fail-a-1").touch()
    assert elastic.finish(agent).code == 1
    assert saved(elastic, "a-0")
    assert not saved(elastic, "a-1")


def test_workers_save_when_another_node_is_drained(elastic, job, train):
    job.serve()
    a, b = job.agents("a b", "--nnodes=2", script=train, KIND="pool")
    for name in ("a-0", "b-0"):
        ready(elastic, name)
    assert job.command("drain", "drain", "b", *job.where).code() == 0
    assert b.code() == 9
    eventually(lambda: saved(elastic, "a-0"), "the other node's worker to save")
    assert saved(elastic, "b-0")
    a.signal(signal.SIGTERM)
    assert a.code() == 128 + signal.SIGTERM


def test_workers_save_when_another_node_is_lost(elastic, job, train):
    job.serve()
    job.conf.update(SOON)
    a, b = job.agents("a b", "--nnodes=2", script=train, KIND="manager")
    ready(elastic, "a-0")
    kill_node(b, ready(elastic, "b-0"))
    eventually(lambda: saved(elastic, "a-0"), "the other node's worker to save")
    a.signal(signal.SIGTERM)
    assert a.code() == 128 + signal.SIGTERM


SHARES = """
import multiprocessing, os, signal, sys, time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

memory = SharedMemory(create=True, size=4096)
multiprocessing.Process(target=time.sleep, args=(600,)).start()
Path("name.part").write_text(memory.name)
Path("name.part").replace("name")
signal.signal(signal.SIGTERM, lambda *_: None)
print("a step", flush=True)
while True:
    time.sleep(600)
"""


@pytest.fixture
def shares(elastic):
    """Function that starts an agent whose worker shares memory. Returns both."""
    script = elastic.script("shares.py", SHARES)

    def run(*flags):
        agent = elastic.start("run", *flags, script)
        path = elastic.cwd / "name"
        eventually(path.exists, "the worker to share memory")
        return agent, Path("/dev/shm", path.read_text())

    yield run
    Path("/dev/shm", (elastic.cwd / "name").read_text()).unlink(missing_ok=True)


def test_shutdown_timeout_leaves_no_shared_memory(elastic, shares):
    agent, memory = shares("--shutdown-timeout=0.5")
    assert memory.exists()
    agent.send_signal(signal.SIGTERM)
    assert elastic.finish(agent).code == 128 + signal.SIGTERM
    assert not memory.exists()


def test_killed_agent_leaves_no_shared_memory(elastic, shares):
    agent, memory = shares()
    assert memory.exists()
    agent.kill()
    elastic.finish(agent)
    eventually(lambda: not memory.exists(), "the memory to go")
    eventually(lambda: not elastic.living(), "all to go")


def test_hung_worker_leaves_no_shared_memory(elastic, shares):
    agent, memory = shares("--hang-timeout=2", "--hang-warmup=0", "--max-restarts=0")
    assert elastic.finish(agent).code == 1
    assert not memory.exists()
