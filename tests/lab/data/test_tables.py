"""The tables of sources and clusterings, and what stands in a user's own file."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from discover.lab.data import CLUSTERINGS, SOURCES, Clustering, DataError, Dataset, Split, cluster, load

OWN = """
import numpy as np
from discover.lab.data import Clustering, Dataset, Split

def line(points=12, *, lazy=False, path=None):
    split = Split(np.arange(points, dtype=np.float32)[:, None], np.arange(points) % 2)
    return Dataset(f"line {path} {lazy}", split, split, 2)

def anything(**options):
    return line(options.pop("points", 4))

def numbers():
    return 3

def halves(dataset):
    return [int(x >= 6) for x in dataset.train.images[:, 0]]

def turns(data, num_clusters, seed):
    return Clustering.from_assignments((np.arange(len(data.train)) + seed) % num_clusters, kind="turns")

def few(data):
    return [0, 1]

def words(data):
    return ["no", "yes"] * (len(data.train) // 2)

def halved(data):
    return [0.5] * len(data.train)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_data.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_data", None)


def test_a_function_in_a_user_s_file_is_a_source(own):
    assert load("own_data:line").name == "line None False"
    assert len(load("own_data:line", "here", points=20, lazy=True).train) == 20
    assert load("own_data:line", "here", lazy=True).name == "line here True"
    assert len(load("own_data:anything", points=6, other=1).train) == 6


def test_a_function_in_a_user_s_file_is_a_clustering(own):
    line = load("own_data:line")
    halves = cluster(line, "own_data:halves")
    assert (halves.kind, halves.sizes.tolist()) == ("own_data:halves", [6, 6])
    assert cluster(line, "own_data:words").names == ("no", "yes")
    turns = cluster(line, "own_data:turns", num_clusters=3, seed=1)
    assert (turns.kind, turns.assignments[:4].tolist()) == ("turns", [1, 2, 0, 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load("own_dta:line"), "there is no module 'own_dta'"),
        (lambda: load("own_data:lin"), "has no 'lin'"),
        (lambda: load("own_data:line", point=3), "option of source 'own_data:line' 'point': did you mean 'points'"),
        (lambda: load("own_data:numbers"), "must return a discover.lab.data.Dataset, got int"),
        (lambda: load("own_data:numbers", "here"), "takes no options, got 'path'"),
        (lambda: cluster(load("own_data:line"), "own_data:none"), "has no 'none'"),
        (lambda: cluster(load("own_data:line"), "own_data:few"), "is for 2 examples, but the training split has 12"),
        (lambda: cluster(load("own_data:line"), "own_data:halved"), "one integer or string per example, got float64"),
    ],
)
def test_what_is_not_there_or_not_right_is_said_in_one_line(own, call, message):
    with pytest.raises(ValueError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("by", CLUSTERINGS)
def test_every_clustering_of_the_table_gives_clusters_of_the_training_split(by, tmp_path):
    site = np.array(list("xyz") * 4)
    split = Split(np.arange(24.0).reshape(12, 2), np.arange(12) % 2, {"site": site, "superclass": site})
    path = Clustering.random(12, 3).save(tmp_path / "clusters")
    options = {"column": "site", "path": path} if CLUSTERINGS[by].needs else {}
    found = cluster(Dataset("small", split, split, 2), by, num_clusters=3, **options)
    assert found.num_examples == 12
    assert found.overlapping == CLUSTERINGS[by].augments
    assert 1 <= found.num_clusters <= 3
    if CLUSTERINGS[by].by_worker:  # named after what is in the data, or after the worker: joined with those of others
        assert found.among([*found.names, "somebody else's"]).num_clusters == found.num_clusters + 1


def test_clusters_that_augment_are_those_that_an_augmentation_knows(own, monkeypatch):
    mine = replace(CLUSTERINGS["augmentations"], name="mine", factory="own_data:halves")
    monkeypatch.setitem(CLUSTERINGS._entries, "mine", mine)
    with pytest.raises(DataError, match="must be flip, mixup, cutmix, got 0, 1"):
        cluster(load("own_data:line"), "mine")


def test_the_tables_know_what_must_be_told():
    assert [CLUSTERINGS[name].needs for name in ("column", "file", "classes")] == [("column",), ("path",), ()]
    assert [bool(SOURCES[name].required) for name in ("folder", "npz", "digits")] == [True, True, False]


def test_reading_the_tables_does_not_load_jax():
    code = (
        "import sys; from discover.lab.data import CLUSTERINGS, SOURCES; print(sorted({'jax', 'PIL'} & {*sys.modules}))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
