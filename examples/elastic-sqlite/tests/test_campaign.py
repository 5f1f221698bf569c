"""Real agents and workers over this store, under random faults, without violations."""

from elastic_testing.campaign import Job, Setting, check, draw, kinds_of


def test_job_survives_twelve_faults(tmp_path):
    setting = Setting("sqlite", str(tmp_path / "rendezvous.db"), conf={"last_call_timeout": "1"})
    storm = draw("1", 12, kinds_of(setting), setting.nodes, most_s=3.0)
    folder = tmp_path / "job"
    folder.mkdir()
    history = Job(setting, folder).run(storm)
    assert check(history) == []
    assert len(history.of("whole")) == len(storm) - 1  # the job finishes in the last wave
