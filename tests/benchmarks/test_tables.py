"""From measurements to rows with ratios and verdicts, and from rows to a page."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import recovery, rendezvous, steady
from benchmarks.fleet import Joined, Traffic
from benchmarks.page import BEGIN, END, merged, table, tables, with_tables
from benchmarks.recovery import SCENARIOS, Try
from benchmarks.report import Report, Row

ROOT = Path(__file__).parents[2]
MACHINE = {
    "date": "2026-01-02T03:04:05+00:00",
    "cores": 2,
    "memory_gib": 4,
    "kernel": "6.1.2-x",
    "python": "3.11",
    "load_before": 0.1,
    "torch": "2.13",
}


def joined(*seconds):
    return [Joined(each) for each in seconds]


def test_a_ratio_is_to_the_same_number_of_agents():
    runs = {"elastic": {8: joined(0.1, 0.3, 0.2)}, "torchrun": {8: joined(1.0, 4.0, 2.0), 256: joined(9.0)}}
    first, second = rendezvous.rows(runs)
    assert (first.ratio(), first.met) == (pytest.approx(0.1), True)
    assert (second.ratio(), second.met) == (None, None)


def test_beyond_what_torchrun_can_the_ratio_is_to_the_most_it_can():
    runs = {"elastic": {512: joined(0.9), 1024: joined(6.0)}, "torchrun": {8: joined(1.0), 256: joined(9.0)}}
    rows = {row.what: row for row in rendezvous.rows(runs)}
    assert rows["512 agents joined"].ratio() == pytest.approx(0.1)
    assert rows["512 agents joined"].met is True
    assert "torchrun's 256" in rows["512 agents joined"].target
    assert rows["1024 agents joined"].met is False


def test_a_run_that_failed_leaves_no_median():
    runs = {"elastic": {8: [Joined(0.1), Joined(9.0, ("1 of 8 did not join",))]}, "torchrun": {8: joined(1.0)}}
    (row,) = rendezvous.rows(runs)
    assert row.values["elastic"] is None
    assert row.notes == {"elastic": "1 of 2 failed: 1 of 8 did not join"}
    assert row.met is False


def test_torchrun_failing_is_no_reference():
    runs = {"elastic": {512: joined(0.5)}, "torchrun": {256: joined(10.0), 512: [Joined(60.0, ("no",))]}}
    (row,) = [row for row in rendezvous.rows(runs) if row.what == "512 agents joined"]
    assert row.ratio() == pytest.approx(0.05)


def test_numbers_of_agents_are_sorted_and_checked():
    assert rendezvous.numbers("256,8,8") == [8, 256]
    assert rendezvous.numbers("") == []
    with pytest.raises(Exception, match="no number of agents"):
        rendezvous.numbers("0,8")


def watched(nodes, requests, up):
    return steady.Watched(nodes, 10.0, 0, Traffic(nodes * 3, requests, up, 0, 0), 1.0, 2.0)


def test_steady_state_is_per_agent_and_second():
    seen = {"elastic": watched(256, 256 * 10, 256 * 100), "torchrun": watched(256, 256 * 30, 256 * 90_000)}
    requests, payload, *_ = steady.rows(256, seen)
    assert (requests.values["elastic"], requests.met) == (1.0, True)
    assert (payload.values["torchrun"], payload.met) == (9000.0, True)


def test_only_what_has_a_target_is_judged():
    assert all(row.met is None for row in steady.rows(64, {"elastic": watched(64, 10**6, 10**6)}))


def test_every_try_must_recover_in_time():
    scenario = SCENARIOS["worker"]
    good = [Try("recovered", recovery_s=1.0), Try("recovered", recovery_s=3.9)]
    assert recovery.met(good, scenario) is True
    assert recovery.met([*good, Try("recovered", recovery_s=4.1)], scenario) is False
    assert recovery.met([*good, Try("hung")], scenario) is False
    assert recovery.met([], scenario) is None


def test_the_worker_of_a_killed_agent_must_die():
    scenario = SCENARIOS["agent"]
    gone, left = Try("recovered", recovery_s=1.0, worker_gone_s=0.1), Try("recovered", recovery_s=1.0)
    assert recovery.met([gone], scenario) is True
    assert recovery.met([gone, left], scenario) is False
    assert recovery.rows(scenario, {"elastic": [gone, left]}, 90)[-1].notes == {"elastic": "gone in 1 of 2"}


def test_what_became_of_the_tries_is_told():
    tries = [Try("recovered", recovery_s=2.0), Try("hung"), Try("hung"), Try("never formed")]
    assert recovery.note(tries, 90) == "1 of 4, slowest 2.0 s, 2 hung (90 s), 1 never formed"


def content(name, value, met=None):
    row = Row("what", "s", {"elastic": value, "torchrun": 2.0}, "<= 1", met=met, notes={"torchrun": "3 of 3 | slow"})
    return {"machine": MACHINE, "reports": [Report(name, {"runs": 3}, [row]).as_dict()]}


def test_a_table_has_figures_notes_and_verdicts():
    (report,) = content("steady", 1.0, met=False)["reports"]
    assert "| what [s] | 1 | 2 (3 of 3 \\| slow) | 0.500 | <= 1 | **no** |" in table(report)


def test_later_files_replace_earlier_ones():
    contents = [content("steady", 1.0), content("rendezvous", 1.0), content("steady", 4.0)]
    assert [report["benchmark"] for _, report in merged(contents)] == ["rendezvous", "steady"]
    assert "| what [s] | 4 |" in tables(contents)
    assert "2026-01-02: 2 cores, 4 GiB, Linux 6.1," in tables(contents)


def test_tables_stand_between_the_markers():
    page = with_tables(f"before\n{BEGIN}\nold\n{END}\nafter\n", "new")
    assert page == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert with_tables(page, "new") == page


def test_what_was_not_measured_anew_stays():
    page = with_tables(f"{BEGIN}{END}", "plot\n\n" + tables([content("rendezvous", 1.0), content("etcd", 5.0)]))
    again = with_tables(page, tables([content("steady", 3.0), content("etcd", 4.0)]))
    assert [line for line in again.splitlines() if line.startswith(("###", "plot"))] == [
        "plot",
        "### Rendezvous: all join at once",
        "### Steady state: nothing happens",
        "### Over etcd (stock torchrun's own etcd backends cannot use an etcd of today)",
    ]
    assert ("| 5 " in page, "| 5 " in again, "| 4 " in again, "| 1 " in again) == (True, False, True, True)


@pytest.mark.parametrize("page", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}", f"{BEGIN}{END}{END}"])
def test_a_page_without_its_markers_is_refused(page):
    with pytest.raises(ValueError, match="expected one"):
        with_tables(page, "new")


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_page_is_written_from_a_file(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(content("steady", 1.0)))
    (tmp_path / "page.md").write_text(f"{BEGIN}{END}")
    done = command("benchmarks.page", tmp_path / "results.json", "--page", tmp_path / "page.md")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Steady state" in (tmp_path / "page.md").read_text()


def test_a_page_that_is_not_there_is_an_error(tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(content("steady", 1.0)))
    done = command("benchmarks.page", tmp_path / "results.json", "--page", tmp_path / "none.md")
    assert done.returncode == 1
    assert "none.md" in done.stderr


def test_options_of_one_benchmark_are_not_for_several():
    done = command("benchmarks.run", "hello", "steady", "--seconds", "3")
    assert done.returncode == 2
    assert "go with one benchmark only" in done.stderr
