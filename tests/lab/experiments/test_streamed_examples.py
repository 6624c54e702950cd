"""Diagnosing and clustering read examples in pieces: a source that cannot give everything at once is enough."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from discover.lab.data import LazyExamples, Split
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.diagnose.find_clusters import find_clusters
from discover.lab.experiments.diagnose.gradient_sample import PIECE, GradientSample
from discover.lab.experiments.diagnose.ranking import DiagnosisOptions, diagnose
from discover.lab.experiments.run.build import build_data

OPTIONS = DiagnosisOptions(sample=600, warmup_steps=30, numbers=(10,))


def config(**values):
    settings = {"model.name": "mlp", "model.depth": 1, "model.width": 16, "batches.groups": 2}
    return Config(name="test").with_values({**settings, "batches.group_size": 16, **values})


class Strict:
    """Reads digits, never more than a piece at a time."""

    def __init__(self, limit=PIECE):
        self.whole = build_data(config())
        self.limit, self.most, self.seen = limit, 0, np.zeros(len(self.whole.train), int)

    def read(self, numbers):
        if len(numbers) > self.limit:
            raise MemoryError(f"{len(numbers)} examples at once")
        self.most = max(self.most, len(numbers))
        np.add.at(self.seen, numbers, 1)
        return self.whole.train.images[numbers]

    @property
    def dataset(self):
        images = self.whole.train.images
        lazy = LazyExamples(self.read, images.shape[1:], images.dtype, np.arange(len(images)))
        return replace(self.whole, train=Split(lazy, self.whole.train.labels))


def test_the_source_is_larger_than_a_piece_so_the_test_can_fail():
    source = Strict()
    assert len(source.seen) > 2 * PIECE
    with pytest.raises(MemoryError):
        np.asarray(source.dataset.train.images)


@pytest.mark.parametrize("by", ["last-layer", pytest.param("projected", marks=pytest.mark.slow)])
def test_clusters_are_found_in_pieces_and_are_those_found_in_memory(by):
    source = Strict()
    streamed = find_clusters(config(), 10, by=by, options=OPTIONS, dataset=source.dataset)
    whole = find_clusters(config(), 10, by=by, options=OPTIONS, dataset=build_data(config()))
    np.testing.assert_array_equal(streamed.assignments, whole.assignments)
    assert source.seen.min() >= 2  # a pass for the centres, one to assign
    assert source.most == PIECE


@pytest.mark.slow
def test_a_diagnosis_reads_in_pieces_and_finds_what_it_finds_in_memory():
    options, source = DiagnosisOptions(sample=520, warmup_steps=5, numbers=(5,)), Strict()
    streamed = diagnose(config(), options, dataset=source.dataset)
    assert streamed.to_json() == diagnose(config(), options, dataset=source.whole).to_json()
    assert source.most == PIECE


@pytest.mark.parametrize("steps", [0, 37])
def test_a_warm_up_in_pieces_takes_exactly_its_steps(steps):
    import jax

    def warmed(source, steps):
        options = DiagnosisOptions(sample=20, warmup_steps=steps)
        return jax.tree.leaves(GradientSample(config(), source.dataset, options).warm_up())

    at_once = warmed(Strict(), steps)  # 32 examples a step: 16 steps a piece
    small = Strict(limit=32)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("discover.lab.experiments.diagnose.gradient_sample.PIECE", 32)
        one_by_one = warmed(small, steps)
    assert small.seen.sum() == 32 * steps  # each once in a batch
    for a, b in zip(at_once, one_by_one, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    if steps:
        start = GradientSample(config(), Strict().dataset, OPTIONS).start
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


def test_a_folder_is_diagnosed_without_loading_it(folder, monkeypatch):
    def refuse(self, *args, **kwargs):
        raise MemoryError("everything at once")

    monkeypatch.setattr(LazyExamples, "__array__", refuse)
    monkeypatch.setattr("discover.lab.data.sources.folders._collect", refuse)
    values = {"data.source": "folder", "data.path": str(folder), "data.size": 8}
    own = config(**values, **{"batches.group_size": 4})
    options = DiagnosisOptions(sample=40, warmup_steps=3, numbers=(11,))  # too many for the sample: no k-means
    found = diagnose(own, options)
    assert {row.name for row in found.rows} == {"classes", "random, 2"}
