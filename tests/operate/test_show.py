"""Snapshots as text and as JSON."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from elastic_core.interfaces.backend import Announced
from elastic_core.interfaces.health import StopStatus
from elastic_core.operate.status import NodeStanding, as_dict, as_text, snapshot_of
from elastic_core.rendezvous.model import Cause, Closed, Report, RoundId, closed, ended, failed, refused

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "status.md"


@pytest.fixture
def text_of(job):
    def text_of(*arguments, **more):
        return as_text(snapshot_of(job.observation(*arguments, **more), job.target))

    return text_of


@pytest.fixture
def json_of(job):
    def json_of(*arguments, **more):
        return json.loads(json.dumps(as_dict(snapshot_of(job.observation(*arguments, **more), job.target))))

    return json_of


def test_running_round_is_shown_as_a_table(job, text_of):
    state = job.state("ab", min_nodes=1, max_nodes=2, restarts=1, reason="all 2 nodes have joined")
    assert text_of(state, job.entries("abc", after=3), silent="b") == (
        "job job (toy at here:1)\n"
        "  round 3 runs with 2 nodes (1 to 2 allowed)\n"
        "  round 3 formed because: all 2 nodes have joined\n"
        "  missing: b\n"
        "  restarts used: 1 of 3\n"
        "\n"
        "RANK  NODE  HOST    ADDRESS  ROLE     WORKERS  LAST BEAT                 STANDING\n"
        "0     a     host-a  addr-a   default  2        0.0 s                     running\n"
        "1     b     host-b  addr-b   default  2        late: none seen in 6.0 s  late\n"
        "-     c     host-c  addr-c   default  1        0.0 s                     spare\n"
    )


def test_workers_that_save_are_shown(job, text_of, json_of):
    stop = StopStatus(3, 40, 86369.5, 86399.5, (0,), (1,))
    seen = ended(job.state("ab"), Cause.LEFT, "a", "a left"), (job.entry("a", stop=stop), job.entry("b"))
    since, by = "since 1970-01-01 23:59:29 UTC", "by 1970-01-01 23:59:59 UTC"
    shown = f"a has been stopping {since}, and saves after step 40, {by}: 1 of 2 ranks have saved; not yet: 1"
    assert f"\n  {shown}\n" in text_of(*seen)
    first, second = json_of(*seen)["members"]
    assert first["stop"] == {"step": 40, "since": 86369.5, "deadline": 86399.5, "saved": [0], "unsaved": [1]}
    assert second["stop"] is None


def test_gathering_job_without_rounds_is_shown(job, text_of):
    text = text_of(None, job.entries("a"))
    assert "\n  no round has formed yet; 1 node joined for the next round\n" in text


@pytest.mark.parametrize(
    ("joined", "line"),
    [
        ("", "round 3 is over; 0 of 2 nodes joined for the next round (2 to 4 allowed)"),
        ("ab", "round 3 is over; 2 of 4 nodes joined for the next round (2 to 4 allowed)"),
    ],
)
def test_round_that_ended_is_shown_with_its_reason(job, text_of, joined, line):
    over = ended(job.state("ab", min_nodes=2, max_nodes=4), Cause.LEFT, "b", "b was asked to leave")
    text = text_of(over, tuple(job.entry(name, after=3 if name in joined else 0) for name in "ab"))
    assert f"\n  {line}\n" in text
    assert "\nLast round ended: node left: b was asked to leave\n" in text


def test_fixed_size_job_shows_no_range(job, text_of):
    assert "\n  round 3 runs with 1 node\n" in text_of(job.state("a", min_nodes=1, max_nodes=1), job.entries("a"))


def test_names_and_reasons_cannot_control_a_terminal(job, text_of, failure):
    snare = "\x1b[2J\u202e\n\nRoot cause: rank 9"
    report = Report("a/1", "a", (failure(1, message=f"a\tb {snare}", node=snare, reason=snare),), certain=True)
    over = failed(job.state("ab", reason=snare), RoundId(3), report)
    text = text_of(replace(over, closed=Closed(snare, snare, False)), job.entries("ab"))
    assert not {"\x1b", "\u202e"} & set(text)
    assert [line for line in text.splitlines() if line.startswith("Root cause: ")] == [
        r"Root cause: rank 1 (local rank 0, pid 7) on \x1b[2J\u202e\n\nRoot cause: rank 9: "
        r"\x1b[2J\u202e\n\nRoot cause: rank 9"
    ]
    assert r"closed by \x1b[2J\u202e\n\nRoot cause: rank 9: \x1b[2J" in text
    assert "    a\tb \\x1b[2J\\u202e\n    \n    Root cause: rank 9\n" in text


def test_consequences_of_a_lost_node_are_not_shown_as_the_root_cause(job, text_of, failure):
    report = Report("a/1", "a", (failure(1),), certain=True)
    lost = replace(ended(job.state("ab"), Cause.LOST, "b", "b was lost", ("b/1",)))
    text = text_of(replace(lost, end=replace(lost.end, reports=(report,))), job.entries("a"))
    assert "\nLast round ended: node lost: b was lost" in text
    assert "Root cause" not in text


def test_failure_is_shown_with_its_message(job, text_of, failure):
    report = Report("a/1", "a", (failure(1, message="ValueError: x", node="a", reason="exit code 1"),), certain=True)
    text = text_of(failed(job.state("ab"), RoundId(3), report), job.entries("ab"))
    assert "\nLast round ended: failure: rank 1 on a: exit code 1; it used a restart\n" in text
    assert "\nRoot cause: rank 1 (local rank 0, pid 7) on a: exit code 1\n" in text
    assert "    ValueError: x\n" in text


def test_uncertain_failure_names_a_possible_cause(job, text_of, failure):
    report = Report("a/1", "a", (failure(1, node="a", reason="exit code 1"),), certain=False)
    text = text_of(failed(job.state("ab"), RoundId(3), report), job.entries("ab"))
    assert "failure: rank 1 on a: exit code 1; a lost node may be the cause" in text


@pytest.mark.parametrize(("succeeded", "how"), [(True, "succeeded"), (False, "failed")])
def test_closed_job_shows_its_result(job, text_of, succeeded, how):
    text = text_of(closed(job.state("a"), "a", "a reason", succeeded), job.entries("a"), silent="a")
    assert f"\n  the job {how} in round 3; closed by a: a reason\n" in text
    assert text.endswith("-          leaving\n")


def test_refused_node_is_shown_with_its_reason(job, text_of):
    text = text_of(refused(job.state("a"), [("b/1", "the name is taken")]), job.entries("ab"))
    assert "\n  b was refused: the name is taken\n" in text


def test_unreadable_entries_are_listed(job):
    seen = job.observation(job.state("a")).after_look(None, [Announced("x/9", b"?", None)], 6.0)
    assert "unreadable entries (from another version or another program): x/9" in as_text(snapshot_of(seen, job.target))


def test_nodes_in_a_store_with_leases_have_no_age(job, text_of):
    text = text_of(job.state("ab"), job.entries("a"), leased=True)
    assert re.search(r"0 +a +.* alive +running\n", text)
    assert re.search(r"1 +b +.* - +gone\n", text)


def documented(text):
    return {name for row in re.findall(r"^\| (`.*?) \|", text, re.M) for name in re.findall(r"`(\w+)`", row)}


def test_exactly_the_documented_fields_exist(job, json_of, failure):
    report = Report("a/1", "a", (failure(1),), certain=True)
    full = json_of(closed(failed(job.state("a"), RoundId(3), report), "a", "why", False), job.entries("ab"))
    fields, nodes, standings = re.split(r"\nA node:\n|\n\| standing ", REFERENCE.read_text())
    assert documented(fields) == set(full)
    assert documented(nodes) == set(full["members"][0]) == set(full["others"][0])
    assert documented(standings) == {standing.value for standing in NodeStanding}
    ends = standings.partition("`last_end` has")[2]
    assert {*full["last_end"], *full["last_end"]["reports"][0], *full["closed"]} <= set(re.findall(r"`(\w+)`", ends))
    assert set(re.findall(r"`([a-z]+(?: [a-z]+)?)`", ends)) >= {cause.value for cause in Cause}


def test_json_describes_job_nodes_and_last_end(job, json_of, failure):
    report = Report("a/1", "a", (failure(1),), certain=True)
    state = failed(job.state("ab", min_nodes=1, max_nodes=2), RoundId(3), report)
    content = json_of(state, job.entries("ab"), silent="b")
    assert (content["version"], content["run_id"], content["phase"], content["round"]) == (1, "job", "gathering", 3)
    assert (content["min_nodes"], content["max_nodes"], content["missing"]) == (1, 2, ["b"])
    assert [(node["rank"], node["node"], node["standing"]) for node in content["members"]] == [
        (0, "a", "stopping"),
        (1, "b", "late"),
    ]
    assert (content["members"][1]["beat_age_seconds"], content["members"][1]["beat_seen"]) == (6.0, False)
    assert (content["last_end"]["cause"], content["last_end"]["restart_used"]) == ("failure", True)
    assert content["first_failure"]["global_rank"] == 1
    assert content["closed"] is None
    assert content["observed_seconds"] == 6.0


def test_json_says_how_the_job_was_closed(job, json_of):
    over = closed(job.state("a"), "a", "every worker succeeded", True)
    assert json_of(over)["closed"] == {"by": "a", "reason": "every worker succeeded", "succeeded": True}
    assert Closed("a", "every worker succeeded", True) == over.closed
