"""What a run leaves on disk, and what survives a crash."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab import records


def line(step, member=0, **extra):
    return {"kind": "train", "member": member, "seed": member % 2, "step": step, "loss": 0.5, **extra}


def test_lines_are_appended_and_read_back(tmp_path):
    with records.MetricsWriter(tmp_path / records.METRICS) as writer:
        writer.write([line(1), line(2)])
        assert writer.sync()[0] == (tmp_path / records.METRICS).stat().st_size
        writer.write([line(3, loss=math.nan)])
    assert records.read_metrics(tmp_path) == [line(1), line(2), line(3, loss=None)]


@settings(max_examples=30)
@given(st.integers(0, 5), st.integers(0, 5), st.integers(0, 30))
def test_reopening_cuts_the_file_back_to_the_length_that_the_checkpoint_knows(tmp_path_factory, kept, lost, torn):
    folder = tmp_path_factory.mktemp("run")
    with records.MetricsWriter(folder / records.METRICS) as writer:
        writer.write([line(step) for step in range(kept)])
        length, _ = writer.sync()
        writer.write([line(100 + step) for step in range(lost)])
    with open(folder / records.METRICS, "ab") as file:
        file.write(b'{"kind": "train", "seed": 0, "step": 99, "loss'[:torn])
    with records.MetricsWriter(folder / records.METRICS, length=length) as writer:
        writer.write([line(7)])
    assert records.read_metrics(folder) == [*(line(step) for step in range(kept)), line(7)]


def test_a_file_shorter_than_remembered_is_refused(tmp_path):
    (tmp_path / records.METRICS).write_bytes(b"{}\n")
    with pytest.raises(ValueError, match="3 bytes where the checkpoint remembers 10"):
        records.MetricsWriter(tmp_path / records.METRICS, length=10)


def test_a_half_written_last_line_is_left_out_and_a_damaged_one_is_named(tmp_path):
    (tmp_path / records.METRICS).write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert records.read_metrics(tmp_path) == [{"step": 1}, {"step": 2}]
    (tmp_path / records.METRICS).write_text('{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(ValueError, match="damaged at line 2"):
        records.read_metrics(tmp_path)
    assert records.read_metrics(tmp_path / "nowhere") == []


def test_json_files_are_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    records.write_json(path, {"a": [1.0, math.inf]})
    assert json.loads(path.read_text()) == {"a": [1.0, None]}

    def fails(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(records.os, "fsync", fails)
    with pytest.raises(OSError, match="No space left"):
        records.write_json(path, {"a": "new"})
    assert json.loads(path.read_text()) == {"a": [1.0, None]}
    assert [item.name for item in tmp_path.iterdir()] == ["summary.json"]


def write_grid(folder):
    folder.mkdir()
    members = [
        {"seed": n % 2, "hyperparameters": {"learning_rate": 0.1 * (1 + n // 2)}, "diverged_at": None}
        | {"final": {"test": {"loss": 1.0 * n, "accuracy": 0.1 * n}}}
        for n in range(4)
    ]
    members[3] |= {"final": None, "diverged_at": 2}
    records.write_json(folder / records.CONFIG, {"name": "grid"})
    records.write_json(folder / records.ENVIRONMENT, {"python": "3"})
    records.write_json(folder / records.SUMMARY, {"status": "finished", "members": members, "seeds": [0, 1, 0, 1]})
    with records.MetricsWriter(folder / records.METRICS) as writer:
        writer.write([line(step, member) for step in (1, 2) for member in range(4)])


def test_some_members_of_a_grid_become_a_run_of_their_own(tmp_path):
    write_grid(tmp_path / "grid")
    new = records.extract_run(tmp_path / "grid", tmp_path / "runs" / "best", [2, 3], config={"name": "chosen"})
    summary = records.read_summary(new)
    assert summary is not None
    assert summary["seeds"] == [0, 1]
    assert summary["final"] == {"test": {"accuracy": [pytest.approx(0.2), None], "loss": [2.0, None]}}
    assert records.is_finished(new)
    assert [(m["seed"], m["step"]) for m in records.read_metrics(new)] == [(0, 1), (1, 1), (0, 2), (1, 2)]
    assert all("member" not in m for m in records.read_metrics(new))
    assert records.read_json(new / records.CONFIG) == {"name": "chosen"}
    assert records.read_json(new / records.ENVIRONMENT) == {"python": "3"}


def test_the_environment_names_versions_hardware_and_command_without_the_programs_location(tmp_path):
    command = [str(tmp_path / "bin" / "discover"), "train", "digits", "--out", "a folder/run"]
    found = records.environment(["NVIDIA H200"], "gpu", command)
    assert found["command"] == "discover train digits --out 'a folder/run'"
    assert found["packages"]["jax"]
    assert found["devices"] == ["NVIDIA H200"]
    assert found["cpus"] >= 1
    assert str(tmp_path) not in json.dumps(found)
    module = records.environment([], None, ["/usr/lib/discover/__main__.py", "presets"])
    assert module["command"] == "python -m discover presets"


def test_a_missing_summary_is_no_finished_run(tmp_path):
    assert records.read_summary(tmp_path) is None
    assert not records.is_finished(tmp_path)
    (tmp_path / records.SUMMARY).write_text("{")
    with pytest.raises(ValueError, match=r"summary.json is damaged"):
        records.read_summary(tmp_path)
