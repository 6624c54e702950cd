"""What the tests of the GPU's ways share: a tree of parameters, and comparisons."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, use_abstract_mesh


def compiled(function, *arguments):
    return jax.jit(lambda *arguments: function(*arguments))(*arguments)  # not what was traced before


H200 = AbstractDevice(device_kind="NVIDIA H200", num_cores=None, platform="gpu")


def lowered_for_cuda(function, *arguments, mesh=None):
    """What `function`, a jitted one, is for a GPU, as text; the machine need not have one."""
    mesh = mesh or AbstractMesh((1,), ("device",), (AxisType.Explicit,), abstract_device=H200)
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), arguments)
    with use_abstract_mesh(mesh):
        return function.trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()


SHAPES = {"scale": (7,), "kernel": (3, 5), "shift": (), "none": (0, 4)}


def random_tree(rng, *lead):
    return {name: jnp.asarray(rng.normal(size=(*lead, *shape)), jnp.float32) for name, shape in SHAPES.items()}


def wide(array):
    return np.asarray(array, np.float32)


def assert_identical(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def assert_same(fast, plain):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), fast, plain)
