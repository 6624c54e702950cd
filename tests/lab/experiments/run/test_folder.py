"""Whose a run's folder is: what is refused, what is replaced and when, and one process at a time."""

import sys

import pytest

from discover.lab import records
from discover.lab.data import DataError
from discover.lab.experiments.folder import FolderError
from discover.lab.experiments.run.directory import RunDirectory
from discover.lab.experiments.run.run import run
from discover.lab.training.errors import RunError
from tests.lab.experiments.running import CONFIG, assert_same_run, go


def test_a_folder_with_a_run_in_it_is_refused_and_how_far_that_is_is_said(finished_run):
    with pytest.raises(
        FolderError, match=r"already holds a run \(finished, step 20\); go on with it \(--resume\), or choose another"
    ):
        go(finished_run[1])


def test_overwriting_replaces_a_run_only_when_the_new_one_can_start(finished_run, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    go(folder, "training.steps=5")
    (folder / "notes.txt").write_text("mine")
    before = (folder / records.METRICS).read_bytes()
    with pytest.raises(DataError):
        run(CONFIG.override(["data.source=npz", f"data.path={tmp_path / 'none'}"]), folder, overwrite=True)
    with RunDirectory(folder).claim(), pytest.raises(FolderError, match="in use by another process"):
        go(folder, overwrite=True)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(RunError, match="TensorBoard needs an extra"):
        go(folder, overwrite=True, tensorboard=True)
    assert (folder / records.METRICS).read_bytes() == before
    assert (folder / "checkpoints/part-0/5").is_dir()
    go(folder, overwrite=True)
    assert (folder / "notes.txt").exists()
    assert not (folder / ".lock").exists()
    assert_same_run(folder, finished_run[1])
