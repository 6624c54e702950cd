"""Strict settings for the optimizers' tests: float64, and no silent broadcasting between ranks."""

import jax
import pytest


@pytest.fixture(autouse=True)
def strict(request):
    x64 = request.node.get_closest_marker("float32") is None
    with jax.enable_x64(x64), jax.numpy_rank_promotion("raise"):
        yield
