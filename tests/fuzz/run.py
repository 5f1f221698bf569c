"""Searches for inputs that break a target: `python tests/fuzz/run.py [RUNS [TARGET...]]`.

Each target gets this many inputs, in a separate process. The fuzzer starts from the seeds and from past findings, and
continues from inputs that reached new code in the readers or in their libraries. It stores findings in `kept/TARGET/`
next to the target's file, where `test_targets.py` tries them from then on; the exit code is 1 then.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1]))

if TYPE_CHECKING:
    from fuzz.targets import Target

RUNS = 20_000
SEED = 1
LIMITS = ("-timeout=2", "-rss_limit_mb=1024", "-max_len=4096")
"""On a busy machine, an input that takes a moment may take a second."""
_TALK = re.compile(r"^(INFO|WARNING|#\d+).*\n", re.M)
_ESCAPE = "\\x{:02x}".format
_DONE = re.compile(r"^Done (\d+) runs", re.M)


def main(runs: int = RUNS, *names: str) -> int:
    """Prints a line for each target. Returns the exit code."""
    from fuzz.installed import load_targets

    targets = load_targets()
    print(f"{runs} inputs for each target, from seed {SEED}", flush=True)
    defects = 0
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as folder:
        for name in names or targets:
            defects += not searched(name, targets[name], runs, Path(folder))
    print(f"{defects} targets with a defect")
    return int(defects > 0)


def searched(name: str, target: Target, runs: int, folder: Path) -> bool:
    """Returns whether the target has no defect."""
    from fuzz.tokens import TOKENS

    kept, corpus, words = target.kept, folder / "corpus" / name, folder / "words"
    kept.mkdir(parents=True, exist_ok=True)
    corpus.mkdir(parents=True)
    for number, seed in enumerate(target.seeds):
        (corpus / f"seed{number}").write_bytes(seed)
    words.write_text("".join(f'"{"".join(map(_ESCAPE, token))}"\n' for token in TOKENS if token))
    command = [sys.executable, __file__, "--one", name, str(corpus), str(kept), f"-runs={runs}", f"-seed={SEED}"]
    command += [*LIMITS, f"-dict={words}", f"-artifact_prefix={kept}/"]
    begun = time.monotonic()
    ended = subprocess.run(command, env={**os.environ, "TMPDIR": str(folder)}, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True, errors="replace")  # fmt: skip
    seconds = time.monotonic() - begun
    if ended.returncode == 0 and (done := _DONE.search(ended.stdout)):
        of_interest = len(list(corpus.iterdir()))
        print(f"{name:16} {int(done[1]):10,} inputs in {seconds:6.0f} s, {of_interest:5} of interest", flush=True)
        if not any(kept.iterdir()):
            kept.rmdir()
        return True
    said = _TALK.sub("", ended.stdout)[-4000:]
    print(f"{name:16} a defect after {seconds:.0f} s\n{said}", flush=True)
    return False


def search_one(name: str, arguments: list[str]) -> None:
    """Run the search, which ends this process."""
    import atheris
    from fuzz.installed import PLUGINS, load_targets

    with atheris.instrument_imports(include=["elastic_core", *PLUGINS, "h11", "tomllib"]):
        target = load_targets()[name]

        from elastic_core import log
    log.configure(level="critical")
    atheris.Setup([sys.argv[0], *arguments], target)
    atheris.Fuzz()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        search_one(sys.argv[2], sys.argv[3:])
    else:
        sys.exit(main(*map(int, sys.argv[1:2]), *sys.argv[2:]))
