"""Real agents and workers over this store, under faults that a seed draws: what may never be is not."""

from elastic_testing.campaign import Job, Setting, check, draw, kinds_of


def test_a_job_lives_through_twelve_faults(tmp_path):
    setting = Setting("sqlite", str(tmp_path / "rendezvous.db"), conf={"last_call_timeout": "1"})
    storm = draw("1", 12, kinds_of(setting), setting.nodes, most_s=3.0)
    folder = tmp_path / "job"
    folder.mkdir()
    history = Job(setting, folder).run(storm)
    assert check(history) == []
    assert len(history.of("whole")) == len(storm) - 1  # with the last wave the job is done
