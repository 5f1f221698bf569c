"""The learned imports of a job's workers, and their cache."""

from __future__ import annotations

import json
import os

import pytest
from elastic_warm.learned_imports import CachedImports, LearnedImports, cache_name, from_json
from elastic_warm.template import read_cache

ENDLESS = LearnedImports(seconds=float("inf")).as_json({}, (), ())


def test_module_is_learned_once_all_workers_imported_it():
    learned = LearnedImports()
    assert not learned.hear("0\t7\tnumpy\t/site/numpy/__init__.py", 2)
    assert not learned.hear("0\t9\twandb\t/site/wandb/__init__.py", 2)
    assert not learned.hear("0\t7\tnumpy\t/site/numpy/__init__.py", 2)
    assert learned.modules == {}
    assert learned.hear("1\t8\tnumpy\t/site/numpy/__init__.py", 2)
    assert not learned.hear("1\t8\tnumpy\t/site/numpy/__init__.py", 2)
    assert learned.modules == {"numpy": "/site/numpy/__init__.py"}


def test_modules_are_ordered_by_start_of_import():
    learned = LearnedImports({"kept": ""})
    for line in ("0\t3\ttorch.nn\t", "0\t2\ttorch._C\t", "0\t4\t__mp_main__\t", "0\t1\ttorch\t/site/torch.py"):
        learned.hear(line, 1)
    assert learned.in_order() == [("kept", ""), ("torch", "/site/torch.py"), ("torch._C", ""), ("torch.nn", "")]


@pytest.mark.parametrize(
    "line", ["", "0", "0\t1\ttorch", "x\t1\ttorch\t", "-1\t1\ttorch\t", "\t\t\t", "0\t1\t\t", "9" * 5000 + "\t1\ta\t"]
)
def test_malformed_line_is_ignored(line):
    learned = LearnedImports()
    assert not learned.hear(line, 1)
    assert learned == LearnedImports()


def test_causes_exclude_modules_deferred_for_an_import():
    learned = LearnedImports()
    learned.leave("rank_zero", "reads LOCAL_RANK")
    learned.leave("lightning", "imports rank_zero")
    learned.leave("plugin", "looks for local_one, which only the workers can find")
    learned.leave("rank_zero", "imports something")
    assert learned.causes == {"rank_zero": "reads LOCAL_RANK"}
    assert len(learned.left) == 3


def test_learned_imports_survive_encoding():
    learned = LearnedImports(
        {"torch": "/site/torch/__init__.py", "caf\udce9": ""}, {"a": "starts a thread"}, seconds=2.5
    )
    text = learned.as_json({"OMP_NUM_THREADS": "1"}, {"B", "A"}, ["SEED"])
    assert from_json(text) == CachedImports(learned, {"OMP_NUM_THREADS": "1"}, frozenset("AB"), frozenset({"SEED"}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"format": 2}',
        ENDLESS,
        '{"format": 1}',
        '{"format": 1, "modules": [], "left": {}}',
        "\x00",
    ],
)
def test_foreign_file_is_ignored(text):
    assert from_json(text) is None


def test_incomplete_file_is_ignored():
    content = json.loads(LearnedImports({"a": "b"}).as_json({}, (), ()))
    for name in content:
        assert from_json(json.dumps({key: value for key, value in content.items() if key != name})) is None
        assert from_json(json.dumps({**content, name: 7 if name != "seconds" else "soon"})) is None


def test_each_program_and_python_has_its_own_cache_file():
    one = cache_name(("python3", "-u"), "3.11", "/a/train.py")
    others = [
        cache_name(("python3", "-u", "-O"), "3.11", "/a/train.py"),
        cache_name(("python3", "-u"), "3.12", "/a/train.py"),
        cache_name(("python3", "-u"), "3.11", "/b/train.py"),
    ]
    assert len({one, *others}) == 4
    assert one == cache_name(("python3", "-u"), "3.11", "/a/train.py")


def test_cache_file_writable_by_others_is_ignored(tmp_path):
    file, link, pipe = (tmp_path / name for name in ("cache", "link", "pipe"))
    file.write_text(LearnedImports({"torch": ""}).as_json({}, (), ()))
    file.chmod(0o644)
    assert read_cache(file).learned.modules == {"torch": ""}
    link.symlink_to(file)
    os.mkfifo(pipe)
    assert [read_cache(path) for path in (link, pipe, tmp_path, tmp_path / "none", None)] == [None] * 5
    for mode in (0o664, 0o646):
        file.chmod(mode)
        assert read_cache(file) is None
