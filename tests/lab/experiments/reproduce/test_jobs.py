"""Several processes on one reproduction."""

import json

import pytest

from discover.lab.cli import build_app
from discover.lab.experiments.reproduce.jobs import more_processes


def test_more_processes_are_waited_for_and_those_that_fail_are_named(tmp_path):
    said = []
    with more_processes(1, ["--version"], tmp_path / "logs", said.append):
        pass
    assert "0." in (tmp_path / "logs" / "process-2.txt").read_text()
    assert said == []
    with more_processes(1, ["reproduce", "results-z"], tmp_path / "logs", said.append):
        pass
    assert said == [f"process 2 ended with exit code 2: {tmp_path / 'logs' / 'process-2.txt'}"]
    assert "results-z" in (tmp_path / "logs" / "process-2.txt").read_text()


@pytest.mark.slow
def test_two_processes_train_the_rows_of_a_result_together(tmp_path):
    from typer.testing import CliRunner

    few = ["--scale", "digits", "--set", "training.steps=5", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(build_app(), ["reproduce", "results-g", "--jobs", "2", *few])
    assert done.exit_code == 0, done.output
    for panel in ("before-adam", "before-adam-same-beta1"):
        record = json.loads((tmp_path / "out" / "results-g" / panel / "comparison.json").read_text())
        assert record["status"] == "finished"
        assert len(record["rows"]) == record["rows_in_all"]
    assert "trained" in (tmp_path / "out" / "logs" / "process-2.txt").read_text()
