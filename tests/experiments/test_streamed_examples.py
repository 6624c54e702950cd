"""Diagnosing and clustering read examples in pieces: a source that cannot give everything at once is enough."""

import numpy as np
import pytest
from PIL import Image

from discover.data import load
from discover.experiments.build import build_data
from discover.experiments.config import Config
from discover.experiments.diagnose import DiagnosisOptions, diagnose
from discover.experiments.examples import ExamplesInFiles, ExamplesInMemory, open_examples
from discover.experiments.find_clusters import find_clusters
from discover.experiments.measurement import PIECE, Measurement

OPTIONS = DiagnosisOptions(sample=600, warmup_steps=30, numbers=(10,))


def config(**values):
    settings = {"model.name": "mlp", "model.depth": 1, "model.width": 16, "batches.groups": 2}
    return Config(name="test").with_values({**settings, "batches.group_size": 16, **values})


class Strict:
    """Digits that are never given more than a piece at a time, nor as an array."""

    def __init__(self, limit=PIECE):
        whole = build_data(config())
        self.name, self.num_classes, self.example_shape = whole.name, whole.num_classes, whole.example_shape
        self.labels, self.columns = whole.train.labels, {}
        self.limit, self.most, self.seen = limit, 0, np.zeros(len(self.labels), int)
        self._images = whole.train.images

    def read(self, indices):
        if len(indices) > self.limit:
            raise MemoryError(f"{len(indices)} examples at once")
        self.most = max(self.most, len(indices))
        np.add.at(self.seen, indices, 1)
        return self._images[indices]

    def __array__(self, *args, **kwargs):
        raise MemoryError("everything at once")


def test_the_source_is_larger_than_a_piece_so_the_test_can_fail():
    source = Strict()
    assert len(source.labels) > 2 * PIECE
    with pytest.raises(MemoryError):
        source.read(np.arange(len(source.labels)))


@pytest.mark.parametrize("by", ["last-layer", "projected"])
def test_clusters_are_found_in_pieces_and_are_those_found_in_memory(by):
    source = Strict()
    streamed = find_clusters(config(), 10, by=by, options=OPTIONS, dataset=source)
    whole = find_clusters(config(), 10, by=by, options=OPTIONS, dataset=build_data(config()))
    np.testing.assert_array_equal(streamed.assignments, whole.assignments)
    assert source.seen.min() >= 2  # a pass for the centres, one to assign
    assert source.most == PIECE


def test_a_diagnosis_reads_in_pieces_and_finds_what_it_finds_in_memory():
    streamed = diagnose(config(), OPTIONS, dataset=Strict())
    assert streamed.to_json() == diagnose(config(), OPTIONS, dataset=build_data(config())).to_json()


@pytest.mark.parametrize("steps", [0, 1, 37])
def test_a_warm_up_in_pieces_takes_exactly_its_steps(steps):
    import jax

    def warmed(source, steps):
        options = DiagnosisOptions(sample=20, warmup_steps=steps)
        return jax.tree.leaves(Measurement(config(), source, options).warm_up())

    at_once = warmed(Strict(), steps)  # 32 examples a step: 16 steps a piece
    small = Strict(limit=32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("discover.experiments.measurement.PIECE", 32)
        one_by_one = warmed(small, steps)
    assert small.seen.sum() == 32 * steps
    for a, b in zip(at_once, one_by_one, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    if steps:
        start = Measurement(config(), Strict(), OPTIONS).start
        assert any(np.abs(np.asarray(a) - b).max() > 1e-3 for a, b in zip(at_once, jax.tree.leaves(start)))


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for part, each in (("train", 30), ("test", 3)):
        for label, name in enumerate(("cat", "dog")):
            (tmp_path / part / name).mkdir(parents=True)
            for number in range(each):
                pixels = rng.integers(100 * label, 100 * label + 80, (20, 24, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(tmp_path / part / name / f"{number:03}.png")
    return tmp_path


@pytest.mark.parametrize("with_test", [True, False])
def test_examples_in_files_are_those_that_training_loads(folder, with_test):
    if not with_test:
        for path in (folder / "test").rglob("*.png"):
            path.unlink()
    values = {"data.source": "folder", "data.path": str(folder), "data.size": 16, "data.validation": 0.1}
    own = config(**values)
    examples = open_examples(own)
    assert isinstance(examples, ExamplesInFiles)
    loaded = build_data(own).train
    np.testing.assert_array_equal(examples.labels, loaded.labels)
    np.testing.assert_array_equal(examples.read(np.arange(len(loaded))), loaded.images)
    assert examples.example_shape == loaded.images.shape[1:]


def test_a_folder_is_diagnosed_without_loading_it(folder, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("the folder was loaded")

    monkeypatch.setattr("discover.data.sources.SOURCES", {**dict.fromkeys(("folder",), refuse)})
    values = {"data.source": "folder", "data.path": str(folder), "data.size": 16}
    own = config(**values, **{"batches.group_size": 4})
    options = DiagnosisOptions(sample=40, warmup_steps=3, numbers=(11,))  # too many for the sample: no k-means
    found = diagnose(own, options)
    assert {"classes", "random, 2", "augmentations"} <= {row.name for row in found.rows}


def test_files_that_cannot_be_used_are_named(folder):
    values = {"data.source": "folder", "data.path": str(folder), "data.validation": 0.0}
    examples = open_examples(config(**values))
    odd = folder / "train" / "dog" / "000.png"
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(odd)
    with pytest.raises(ValueError, match=r"differ in size.*data.size"):
        examples.read(np.arange(len(examples.labels)))
    odd.write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"dog/000.png cannot be read"):
        examples.read(np.arange(len(examples.labels)))


def test_everything_else_is_loaded():
    examples = open_examples(config())
    assert isinstance(examples, ExamplesInMemory)
    digits = load("digits")
    assert len(examples.labels) <= len(digits.train)
