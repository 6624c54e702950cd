"""The learning-rate schedule against a plain NumPy version."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.training.learning_rate import factor, schedule


@settings(max_examples=50)
@given(warmup=st.integers(0, 20), total=st.integers(1, 200), peak=st.floats(1e-4, 10))
def test_cosine_with_warmup_matches_the_formula(warmup, total, peak):
    steps = np.arange(200)  # also beyond the end, where it stays at zero
    w, t = float(warmup), steps.astype(float)
    cosine = 0.5 * (1 + np.cos(np.pi * np.clip((t - w) / max(total - w, 1), 0, 1)))
    expected = peak * np.where(t < w, (t + 1) / max(w, 1), cosine)
    found = schedule("cosine", peak, warmup, total)(steps)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6 * peak)


def test_warmup_reaches_the_peak_at_its_last_step_and_cosine_starts_there():
    values = np.asarray(factor("cosine", np.arange(100), 5, 100))
    np.testing.assert_allclose(values[:6], [0.2, 0.4, 0.6, 0.8, 1.0, 1.0])
    assert np.all(np.diff(values[5:]) < 0)
    assert 0 < values[-1] < 1e-3


def test_constant_stays_at_the_peak():
    np.testing.assert_allclose(factor("constant", np.arange(6), 2, 6), [0.5, 1, 1, 1, 1, 1])


def test_one_compiled_program_serves_every_rate_and_length():
    traces = []

    @jax.jit
    def rate(step, peak, warmup, total):
        traces.append(1)
        return schedule("cosine", peak, warmup, total)(step)

    assert float(rate(3, 0.1, 5.0, 100.0)) == pytest.approx(0.08)
    assert float(rate(3, 0.2, 3.0, 50.0)) == pytest.approx(0.2)
    assert len(traces) == 1
