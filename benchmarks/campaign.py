"""Subject jobs of elastic-core to storms of random faults, and check their histories against rules.

Jobs have two to five nodes, each on a separate machine (a network namespace with a link, an address, a name and a
disk). A job's seed determines its faults, which may overlap. `elastic_testing.campaign` defines the kinds of faults and
the rules. Several jobs run in parallel, cycling through all worlds, for `--minutes`. A seed always draws the same
storm, but its timing on the machine varies. If a job violates a rule, its storm, history and logs are kept in a folder
under `--keep`. `--shrink` reduces a kept storm.

Needs root. `torchrun` gets the faults that apply to it, one wave per job, because it seldom survives one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from elastic_testing.campaign import (
    Job,
    Server,
    Setting,
    Storm,
    check,
    draw,
    kinds_of,
    read,
    smaller,
    write,
)
from elastic_testing.machines import Machines, machines, missing

import elastic_core
from benchmarks.job import WORKERS, BenchmarkError, launcher_command
from benchmarks.planted import DEFECTS, Defect
from benchmarks.report import Report, Row, main, parser

WORLDS = ("c10d", "etcd", "etcd served", "sqlite", "static")
SLOW_S = 3.0
"""In some jobs, rank 0 writes a checkpoint for this long when it receives SIGTERM."""
MOST_S = 900.0
"""A job that runs longer is killed, and its storm is kept."""

# Runs in a machine's name space: lists the keys and leases of an etcd.
LEFT = """
import base64, json, sys, urllib.request
def ask(path, **what):
    data = json.dumps(what).encode()
    with urllib.request.urlopen(f"http://{sys.argv[1]}:2379/v3/{path}", data, timeout=5) as answer:
        return json.load(answer)
for found in ask("kv/range", key="AA==", range_end="AA==", keys_only=True).get("kvs", []):
    print("key", base64.b64decode(found["key"]).decode())
for found in ask("lease/leases").get("leases", []):
    lives = ask("lease/timetolive", ID=found["ID"], keys=True)
    keys = [base64.b64decode(key).decode() for key in lives.get("keys", [])]
    # A member may list expired leases. The state of a finished job stays, for late nodes.
    if int(lives.get("TTL", -1)) > 0 and not any(key.endswith("/state") for key in keys):
        print("lease of", lives["grantedTTL"], "s for", *keys or ["nothing"])
"""

# Runs there, too: counts the members that vote and answer, from the local member's list.
VOTES = """
import json, sys, urllib.request
def ask(url, path):
    with urllib.request.urlopen(f"{url}/v3/{path}", b"{}", timeout=1) as answer:
        return json.load(answer)
try:
    found = ask(f"http://{sys.argv[1]}:2379", "cluster/member/list")["members"]
    voting = [member for member in found if not member.get("isLearner") and member.get("clientURLs")]
    print(sum("leader" in ask(member["clientURLs"][0], "maintenance/status") for member in voting))
except (OSError, KeyError, ValueError):
    print(0)
"""


@dataclass(frozen=True)
class Shape:
    """Properties of a campaign's job, drawn from its seed.

    Args:
        real: whether the workers train with DDP.
        logs: whether logs and results are on the disks that fail.
        slow: whether rank 0 takes long to stop.
        together: whether the workers call `should_stop`.
        listed: the number of hosts in the endpoint, if the nodes host the store; 0 means all.
        joins: whether the last node joins later.
    """

    world: str
    nodes: int
    secret: bool
    warm: bool
    names: bool
    real: bool = False
    logs: bool = False
    slow: bool = False
    listed: int = 0
    together: bool = False
    joins: bool = False

    @property
    def served(self) -> int:
        """The number of nodes that serve etcd: the first three, or one in jobs of two, as the number has to be odd. If
        the only member is lost, the other node restores the job's state; a job of one node starts again."""
        if self.world != "etcd served":
            return 0
        return 1 if self.joins or self.nodes < 3 else 3

    @classmethod
    def drawn(cls, world: str, seed: str) -> Shape:
        """Draw a shape from a seed."""
        lot = random.Random(f"shape {world} {seed}")
        bare = world == "torchrun"
        nodes, secret, warm, names = (
            lot.choice((2, 3, 3, 4, 5) if world == "etcd served" else (2, 2, 3, 3, 4, 5)),
            lot.random() < 0.5,
            lot.random() < 0.25,
            lot.random() < 0.5,
        )
        if real := not bare and lot.random() < 0.05:
            nodes = 3
        logs = not bare and lot.random() < 0.3
        slow = lot.random() < 0.15 and not (bare or real)
        listed = lot.choice((0, 0, 1, 2)) if world == "c10d" else 0
        together = lot.random() < 0.5 and not (bare or real)
        if joins := lot.random() < 0.2 and not (bare or real) and world != "static":
            nodes = 2
        return cls(
            *(world, nodes, secret and not bare, (warm or real) and not bare, names),
            *(real, logs, slow, listed, together, joins),
        )


@contextlib.contextmanager
def setting_of(shape: Shape, folder: Path, planted: str = "", flags: Sequence[str] = ()) -> Iterator[Setting]:
    """Create machines and a job for them, and remove them after the block."""
    members = 3 if shape.world == "etcd" else 0
    with machines(shape.nodes + members) as made:
        setting = _setting(shape, made, folder)
        launcher = [sys.executable, "-m", "benchmarks.planted", planted, "run"] if planted else setting.launcher
        more = [*setting.flags, *flags]
        secret = folder / "secret"
        secret.write_text("a secret of this campaign\n")
        secret.chmod(0o600)
        worker = setting.worker
        if shape.warm:
            more.append("--warm-start")
            worker = setting.worker[-1:]
        if shape.real:
            worker = (str(WORKERS / "campaign_ddp.py"),)
        environment = {**setting.environment, "CAMPAIGN_STOPS_S": str(SLOW_S if shape.slow else 0)}
        if shape.together:
            environment["CAMPAIGN_TOGETHER"] = str(Path(elastic_core.__file__).parents[1])
        made_for: dict[str, Any] = {"launcher": launcher, "flags": more, "worker": worker, "environment": environment}
        if planted:
            made_for["limit_s"] = 45.0  # many of them never recover
            path = (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", ""))
            environment["PYTHONPATH"] = ":".join(filter(None, path))
        made_for["secret"] = str(secret) if shape.secret else ""
        made_for["have"] = setting.have | ({"warm"} if shape.warm else set()) | ({"joins"} if shape.joins else set())
        if shape.logs:
            made_for["own"] = lambda place: (*setting.own(place), *_on_disk(folder / "disks" / str(place)))
        yield replace(setting, **made_for)


def _on_disk(disk: Path) -> tuple[str, ...]:
    """Options that put logs and results on the disk that fails."""
    return (f"--log-dir={disk / 'logs'}", "--redirects=3", f"--result-file={disk / 'result.json'}")


def _setting(shape: Shape, made: Machines, folder: Path) -> Setting:
    own = list(made)[: shape.nodes]
    hosts = [f"machine{number}" if shape.names else one.address for number, one in enumerate(own, 1)]
    last_call = {"last_call_timeout": "1"}
    have = frozenset({"elastic", "shared"})
    environment = {"RES_OPTIONS": "timeout:1 attempts:1"}
    if shape.world in ("c10d", "sqlite"):  # not etcd, because gRPC waits by the wall clock
        have |= {"clock"}
    if shape.world == "c10d":
        listed = hosts[: shape.listed or None]
        have |= {"hosted"}
        return Setting("c10d", ",".join(f"{host}:29400" for host in listed), shape.nodes, last_call, machines=own,
                       have=have, environment=environment)  # fmt: skip
    if shape.world == "etcd":
        theirs = list(made)[shape.nodes :]
        servers = [Server(_member(number, [one.address for one in theirs], folder), machine)
                   for number, machine in enumerate(theirs)]  # fmt: skip

        def left() -> list[str]:
            found = theirs[0].run(sys.executable, "-c", LEFT, theirs[0].address).splitlines()
            # What the agents have written to a round's store has the lease of the job's state.
            return [line for line in found if not line.endswith("/state") and "/campaign/store/" not in line]

        return Setting("etcd", ",".join(one.address for one in theirs), shape.nodes, last_call, machines=own, have=have,
                       servers=servers, left=left, environment=environment)  # fmt: skip
    if shape.world == "etcd served":
        # A cut link and a lost agent may leave too few members to answer a new agent for longer than a minute.
        conf = {**last_call, "serve": "true", "connect_timeout": "180"}

        def ready() -> bool:
            """Whether all members vote and answer."""
            votes = (one.run(sys.executable, "-I", "-S", "-c", VOTES, one.address) for one in own[: shape.served])
            return str(shape.served) in map(str.strip, votes)

        have |= {"members", "keepers", "hosted"}
        return Setting("etcd", ",".join(hosts[: shape.served]), shape.nodes, conf, machines=own, have=have, ready=ready,
                       environment=environment)  # fmt: skip
    if shape.world == "sqlite":
        return Setting("sqlite", str(folder / "rendezvous.db"), shape.nodes, last_call, machines=own, have=have,
                       environment=environment)  # fmt: skip
    if shape.world == "static":
        return Setting("static", "", shape.nodes, flags=(f"--master-addr={hosts[0]}",), machines=own, fixed=True,
                       looked_at=f"{hosts[0]}:29500",
                       own=lambda place: (f"--node-rank={place}",), have=frozenset({"elastic"}),
                       environment=environment)  # fmt: skip
    return Setting("c10d", f"{own[0].address}:29400", shape.nodes, {}, machines=own, have=frozenset(),
                   launcher=launcher_command("torchrun"), environment=environment, limit_s=60.0,
                   own=lambda place: (f"--rdzv-conf=is_host={place == 0}",
                                      f"--local-addr={own[place].address}"))  # fmt: skip


def _member(number: int, hosts: Sequence[str], folder: Path) -> list[str]:
    from elastic_etcd.server.process import find_binary

    clients, peers = f"http://{hosts[number]}:2379", f"http://{hosts[number]}:2380"
    return [
        *(find_binary().path, "--name", f"m{number}", "--data-dir", str(folder / f"m{number}")),
        *("--listen-client-urls", clients, "--advertise-client-urls", clients),
        *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
        *("--initial-cluster", ",".join(f"m{place}=http://{host}:2380" for place, host in enumerate(hosts))),
        *("--log-level", "error"),
    ]


@dataclass
class Outcome:
    """One job of the campaign.

    Args:
        faults: number of injected faults by kind.
        alone: for each kind, the seconds from a fault that was alone in its wave until all nodes trained again.
        violations: the findings of `check`.
        reached: number of waves that the job survived.
    """

    shape: Shape
    seed: str
    faults: dict[str, int] = field(default_factory=dict)
    alone: dict[str, list[float]] = field(default_factory=dict)
    violations: list[dict[str, Any]] = field(default_factory=list)
    reached: int = 0
    rounds: int = 0
    seconds: float = 0.0


def conduct(
    shape: Shape, seed: str, storm: Storm, folder: Path, planted: str = "", flags: Sequence[str] = ()
) -> Outcome:
    """Run one job through a storm, in this process."""
    begun = time.monotonic()
    write(storm, folder / "storm.json")
    with setting_of(shape, folder, planted, flags) as setting:
        history = Job(setting, folder).run(storm)
    made = Outcome(shape, seed, rounds=len(history.rounds))
    struck = [event for event in history.of("fault") if not event["missed"]]
    made.faults = dict(Counter(event["kind"] for event in struck))
    whole = {event["number"]: event for event in history.of("whole")}
    made.reached = len(whole)
    for number, wave in enumerate(storm):
        if number in whole and len(wave.faults) == 1:
            made.alone.setdefault(wave.faults[0].kind, []).append(round(whole[number]["recovery_s"], 3))
    made.violations = [asdict(one) for one in check(history)]
    made.seconds = time.monotonic() - begun
    return made


def storm_of(shape: Shape, seed: str, faults: int, most_s: float, kinds: Sequence[str] = ()) -> Storm:
    """Draw a storm from a seed."""
    with tempfile.TemporaryDirectory() as folder, setting_of(shape, Path(folder)) as setting:
        can = kinds_of(setting)
        known = [kind for kind in can if not kinds or kind in kinds]
        # If the nodes host the store, losing all of them together ends the job.
        hosted = shape.world in ("c10d", "static")
        losses = 1 if shape.world == "etcd served" else min(3, shape.nodes - 1) if hosted else 3
        return draw(seed, faults, known, shape.nodes, len(setting.servers), most_s, losses)


def run_one(arguments: argparse.Namespace) -> None:
    """Run one job, as a child process, and write its outcome into the folder."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that cleanup runs
    folder = Path(arguments.one)
    order = json.loads((folder / "order.json").read_text())
    shape = Shape(**order["shape"])
    storm = (
        read(folder / "storm.json")
        if (folder / "storm.json").exists()
        else storm_of(shape, order["seed"], order["faults"], order["most_s"], order["kinds"])
    )
    made = conduct(shape, order["seed"], storm, folder, order["planted"], order["flags"])
    (folder / "outcome.json").write_text(json.dumps(asdict(made)))


class Running:
    """One job in a separate process."""

    def __init__(self, base: Path, shape: Shape, seed: str, arguments: argparse.Namespace) -> None:
        self.shape, self.seed, self.begun = shape, seed, time.monotonic()
        self.folder = base / f"{shape.world.replace(' ', '-')}-{seed.replace('/', '-')}"
        self.folder.mkdir()
        faults = 1 if shape.world == "torchrun" else arguments.faults
        order = {"shape": asdict(shape), "seed": seed, "faults": faults, "most_s": arguments.most,
                 "kinds": arguments.kinds, "planted": arguments.plant, "flags": arguments.flags}  # fmt: skip
        (self.folder / "order.json").write_text(json.dumps(order))
        if arguments.storm:
            write(arguments.storm, self.folder / "storm.json")
        command = [sys.executable, "-m", "benchmarks.campaign", "--one", str(self.folder)]
        with (self.folder / "output").open("wb") as file:
            # A new session, so that Ctrl-C reaches only the campaign, which then ends its jobs.
            self._process = subprocess.Popen(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
                                             start_new_session=True)  # fmt: skip

    def over(self) -> bool:
        """Whether the job has ended. Kills a job that takes too long."""
        if time.monotonic() - self.begun > MOST_S:
            self.end()
        return self._process.poll() is not None

    def end(self) -> None:
        """End the job, and unmount the disks that it had no time to unmount."""
        self._process.terminate()
        self._process.wait()
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if line.split()[1].startswith(f"{self.folder}/"):
                subprocess.run(["umount", "-l", line.split()[1]], check=False, capture_output=True)

    def outcome(self) -> Outcome:
        """The job's outcome. A failure of the campaign itself is reported as a violation, too."""
        path = self.folder / "outcome.json"
        if not path.exists():
            output = (self.folder / "output").read_text()[-1500:] or f"exit code {self._process.returncode}, no output"
            return Outcome(
                self.shape, self.seed, violations=[{"rule": "campaign", "what": output, "at": 0.0, "wave": None}]
            )
        content = json.loads(path.read_text())
        return Outcome(Shape(**content.pop("shape")), **content)


def campaign(arguments: argparse.Namespace) -> Iterator[Outcome]:
    """Run `--parallel` jobs at a time for `--minutes`, up to `--jobs`, or until the caller closes the generator."""
    running: list[Running] = []
    until = time.monotonic() + arguments.minutes * 60
    base = Path(tempfile.mkdtemp(prefix="elastic-campaign-"))
    keep = Path(arguments.keep)
    keep.mkdir(parents=True, exist_ok=True)
    number = 0
    try:
        while running or (time.monotonic() < until and (not arguments.jobs or number < arguments.jobs)):
            while len(running) < arguments.parallel and time.monotonic() < until and number < (arguments.jobs or 10**9):
                world = arguments.worlds[number % len(arguments.worlds)]
                seed = f"{arguments.seed}/{number}"
                shape = replace(Shape.drawn(world, seed), **arguments.like)
                running.append(Running(base, shape, seed, arguments))
                number += 1
            for one in [one for one in running if one.over()]:
                running.remove(one)
                made = one.outcome()
                narrate(made)
                yield made
                if made.violations and made.shape.world != "torchrun":
                    shutil.copytree(one.folder, keep / one.folder.name, dirs_exist_ok=True,
                                    ignore=shutil.ignore_patterns("disks", "m0", "m1", "m2"))  # fmt: skip
                shutil.rmtree(one.folder, ignore_errors=True)
            time.sleep(0.2)
    finally:
        for one in running:
            one.end()
        shutil.rmtree(base, ignore_errors=True)


def narrate(made: Outcome) -> None:
    """Print a line for the job, and one for each of its first violations."""
    shape = made.shape
    words = ("secret", "warm", "names", "real", "logs", "slow", "listed", "joins")
    like = ", ".join(word for word in words if getattr(shape, word)) or "plain"
    print(f"{shape.world} {made.seed} ({shape.nodes} nodes, {like}): {sum(made.faults.values())} faults, {made.rounds} "
          f"rounds, {made.seconds:.0f} s, {len(made.violations)} violations", flush=True)  # fmt: skip
    for one in made.violations[:4]:
        print(f"    wave {one['wave']}: {one['rule']}: {one['what'][:300]}", flush=True)


def shrink(arguments: argparse.Namespace) -> Report:
    """Reduce the storm of a kept job to fewer faults that violate the same rule in one of `--tries` tries."""
    source = Path(arguments.shrink)
    order = json.loads((source / "order.json").read_text())
    shape = Shape(**order["shape"])
    rules = {one["rule"] for one in json.loads((source / "outcome.json").read_text())["violations"]}

    def fails(storm: Storm) -> bool:
        for _ in range(arguments.tries):
            with tempfile.TemporaryDirectory(prefix="elastic-campaign-") as folder:
                made = conduct(shape, order["seed"], storm, Path(folder), order["planted"], order["flags"])
            found = {one["rule"] for one in made.violations}
            print(f"{sum(len(wave.faults) for wave in storm)} faults: {sorted(found & rules) or 'nothing'}", flush=True)
            if found & rules:
                return True
        return False

    small = smaller(read(source / "storm.json"), fails)
    write(small, source / "small.json")
    for wave in small:
        print(wave)
    return Report("campaign", {"shrunk": str(source)})


def catch(arguments: argparse.Namespace) -> Report:
    """Plant the defects one by one, and note the seed with which the checker finds each, in at most `--tries` jobs."""
    report = Report("campaign", {"seed": arguments.seed, "commit": commit()})
    caught: list[dict[str, Any]] = []
    report.measurements["caught"] = caught
    with contextlib.suppress(KeyboardInterrupt):  # report the defects tried so far
        for name in DEFECTS if arguments.catch == ["all"] else arguments.catch:
            caught.append(_planted(name, DEFECTS[name], arguments))
            print(f"{name}: {caught[-1]['rule'] or 'not found'}", flush=True)
    report.rows.append(Row("defects found", "", {"elastic": float(sum(bool(one["rule"]) for one in caught))}))
    return report


def _planted(name: str, defect: Defect, arguments: argparse.Namespace) -> dict[str, Any]:
    world = defect.backends[0]
    asked = argparse.Namespace(**{**vars(arguments), "plant": name, "kinds": list(defect.kinds),
                                  "flags": [*arguments.flags, *defect.flags], "worlds": [world],
                                  "jobs": arguments.tries, "minutes": 60.0, "like": dict(defect.like),
                                  "faults": defect.faults, "storm": defect.storm(),
                                  "seed": f"{arguments.seed}-{name}"})  # fmt: skip
    result: dict[str, Any] = {"name": name, "what": defect.what, "world": world, "tries": 0, "rule": "", "seed": "",
                              "found": ""}  # fmt: skip
    with contextlib.closing(campaign(asked)) as jobs:
        for made in jobs:
            result["tries"] += 1
            if made.violations:
                first = made.violations[0]
                return {**result, "rule": first["rule"], "seed": made.seed, "found": first["what"][:300]}
    return result


def commit() -> str:
    """Short hash of this checkout's commit."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(asked, check=False, capture_output=True, text=True).stdout.strip() or "unknown"


def measure(arguments: argparse.Namespace) -> Report:
    """Run the campaign, or `--shrink`, or `--catch`."""
    if unknown := set(arguments.worlds) - {*WORLDS, "torchrun"}:
        raise BenchmarkError(f"--worlds: unknown {', '.join(sorted(unknown))}; known are {', '.join(WORLDS)}, torchrun")
    if reason := missing():
        raise BenchmarkError(reason)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C
    if arguments.shrink:
        return shrink(arguments)
    if arguments.catch:
        return catch(arguments)
    outcomes: list[Outcome] = []
    with contextlib.suppress(KeyboardInterrupt):  # report the jobs finished so far
        outcomes.extend(campaign(arguments))
    settings = {"seed": arguments.seed, "minutes": arguments.minutes, "parallel": arguments.parallel}
    report = Report("campaign", {**settings, "commit": commit()})
    report.measurements["jobs"] = [asdict(one) for one in outcomes]
    worlds = [world for world in (*WORLDS, "torchrun") if any(one.shape.world == world for one in outcomes)]
    counts: dict[str, Callable[[Outcome], int]] = {
        "jobs": lambda one: 1,
        "faults": lambda one: sum(one.faults.values()),
        "rounds": lambda one: one.rounds,
        "violations": lambda one: len(one.violations),
    }
    for what, count in counts.items():
        values = {world: float(sum(count(one) for one in outcomes if one.shape.world == world)) for world in worlds}
        report.rows.append(Row(what, "", values))
    return report


def options() -> argparse.ArgumentParser:
    """The command line."""
    made = parser(__doc__)
    made.add_argument("--minutes", type=float, default=10.0, help="start no job after this time (10)")
    made.add_argument("--jobs", type=int, default=0, help="maximum number of jobs; 0: only --minutes limits them (0)")
    made.add_argument("--seed", default="1", help="seed of all random choices (1)")
    made.add_argument(
        "--worlds", type=lambda text: text.split(","), default=list(WORLDS), help="which (all but torchrun)"
    )
    made.add_argument("--parallel", type=int, default=6, help="jobs at a time (6)")
    made.add_argument("--faults", type=int, default=60, help="faults per job (60)")
    made.add_argument("--most", type=float, default=60.0, help="maximum duration of a fault in seconds (60)")
    made.add_argument("--kinds", type=lambda text: text.split(","), default=[], help="use only these kinds of faults")
    made.add_argument("--plant", default="", help="plant this defect of benchmarks.planted")
    made.add_argument("--flags", type=lambda text: text.split(), default=[], help="more options for `elastic run`")
    made.add_argument("--keep", default="campaign", help="folder for jobs with violations (campaign)")
    made.add_argument("--shrink", default="", metavar="FOLDER", help="reduce the storm that is kept there")
    made.add_argument("--tries", type=int, default=3, help="tries of each reduced storm (3)")
    made.add_argument(
        "--catch", type=lambda text: text.split(","), default=[], help="defects of benchmarks.planted to plant, or all"
    )
    made.add_argument("--like", type=json.loads, default={}, help="fields of Shape to set, as JSON")
    made.add_argument("--one", default="", help=argparse.SUPPRESS)
    made.set_defaults(storm=())
    return made


if __name__ == "__main__":
    if (asked := options().parse_args()).one:
        run_one(asked)
        sys.exit(0)
    sys.exit(main(measure, options()))
