"""Label noise: its rate, its spread over the other classes, and that it depends on nothing but (seed, sight, index)."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.data import DataError, LabelNoise


@given(p=st.floats(0, 1), num_classes=st.integers(2, 30), seed=st.integers(0, 2**70), sight=st.integers(0, 2**40))
@settings(max_examples=50)
def test_noise_has_the_right_rate_and_keeps_labels_in_range(p, num_classes, seed, sight):
    labels = np.arange(20_000) % num_classes
    observed = LabelNoise(p, num_classes, seed).observe(labels, np.arange(20_000), sight)
    assert observed.dtype == np.int32
    assert observed.min() >= 0
    assert observed.max() < num_classes
    rate = np.mean(observed != labels)
    assert abs(rate - p) < 6 * np.sqrt(p * (1 - p) / 20_000) + 1e-9


def test_flips_go_to_every_other_class_equally():
    labels = np.full(90_000, 4)
    counts = np.bincount(LabelNoise(1.0, 10, 8).observe(labels, np.arange(90_000), 0), minlength=10)
    others = np.delete(counts, 4)
    assert counts[4] == 0
    assert np.sum((others - 10_000) ** 2 / 10_000) < 45  # χ² of 8 degrees of freedom, beyond its 1e-6 quantile


def test_sights_examples_and_seeds_are_independent():
    labels = np.zeros(40_000, dtype=int)
    index = np.arange(40_000)
    base = LabelNoise(0.5, 2, 0).observe(labels, index, 0)
    for other in (
        LabelNoise(0.5, 2, 0).observe(labels, index, 1),
        LabelNoise(0.5, 2, 1).observe(labels, index, 0),
        np.roll(base, 1),
        LabelNoise(0.5, 2, 0).observe(labels, np.zeros_like(index), index),
    ):
        assert abs(np.mean(base == other) - 0.5) < 6 * 0.5 / 200


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=50))
def test_observation_is_element_by_element(pairs):
    noise = LabelNoise(0.6, 5, 11)
    index, sight = np.array(pairs).T
    together = noise.observe(index % 5, index, sight)
    alone = [int(noise.observe(np.array(i % 5), np.array(i), np.array(k))) for i, k in pairs]
    assert together.tolist() == alone


def test_values_are_fixed_forever():
    # A change here would break the resumption of every noisy run that was ever started.
    observed = LabelNoise(0.5, 10, 1234).observe(np.arange(12) % 10, np.arange(12), np.arange(12) % 3)
    assert observed.tolist() == FIXED


FIXED = [3, 1, 2, 5, 6, 6, 6, 8, 5, 1, 9, 3]


@given(
    counts=st.lists(st.integers(1, 50), min_size=2, max_size=8),
    p=st.floats(0, 1),
)
def test_class_probabilities_are_those_of_the_transition_matrix(counts, p):
    probs = np.array(counts) / np.sum(counts)
    size = len(counts)
    transition = (1 - p) * np.eye(size) + p / (size - 1) * (1 - np.eye(size))
    assert np.allclose(LabelNoise(p, size).class_probs(probs), probs @ transition)
    assert np.isclose(LabelNoise(p, size).class_probs(probs).sum(), 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1.5, 10), "label noise must be between 0 and 1, got 1.5"),
        ((float("nan"), 10), "label noise must be between 0 and 1, got nan"),
        ((0.5, 1), "needs at least 2 classes"),
        ((0.5, 0), "num_classes must be an integer of at least 1, got 0"),
        ((0.5, 3, -2), "seed must be an integer of at least 0, got -2"),
    ],
)
def test_bad_values_are_named(arguments, message):
    with pytest.raises(DataError, match=message):
        LabelNoise(*arguments)
