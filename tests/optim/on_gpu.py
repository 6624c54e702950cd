"""What the tests of the GPU's ways share: a tree of parameters, and comparisons."""

import jax
import jax.numpy as jnp
import numpy as np


def compiled(function, *arguments):
    return jax.jit(lambda *arguments: function(*arguments))(*arguments)  # not what was traced before


SHAPES = {"scale": (7,), "kernel": (3, 5), "shift": (), "none": (0, 4)}


def random_tree(rng, *lead):
    return {name: jnp.asarray(rng.normal(size=(*lead, *shape)), jnp.float32) for name, shape in SHAPES.items()}


def wide(array):
    return np.asarray(array, np.float32)


def assert_identical(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def assert_same(fast, plain):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), fast, plain)
