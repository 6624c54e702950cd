"""Our group norm is flax's, with a gradient of its own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from discover import group_value_and_grad
from discover.lab.models.group_norm import GroupNorm, group_norm, normalize


def pair(features, num_groups, dtype=jnp.float32):
    """Ours and flax's, with the same parameters that are neither 0 nor 1."""
    make = {"epsilon": 1e-5, "dtype": dtype, "scale_init": nnx.initializers.ones, "rngs": nnx.Rngs(0)}
    norms = [kind(features, num_groups, **make) for kind in (GroupNorm, nnx.GroupNorm)]
    rng = np.random.default_rng(1)
    scale, bias = (jnp.asarray(rng.normal(size=features), jnp.float32) for _ in range(2))
    for norm in norms:
        norm.scale[...], norm.bias[...] = scale, bias
    return norms


def value_and_gradients(norm, x, weight):
    graph, params = nnx.split(norm)

    def value(params, x):
        return jnp.sum(weight * nnx.merge(graph, params)(x))

    result = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))(params, x)
    return jax.tree.leaves(result)


@settings(max_examples=3)
@given(
    st.integers(1, 3), st.lists(st.integers(1, 4), max_size=2), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99)
)
def test_value_and_gradients_are_those_of_flax(images, places, num_groups, size, seed):
    rng = np.random.default_rng(seed)
    with jax.enable_x64(True):
        x, weight = (jnp.asarray(rng.normal(1, 2, size=(images, *places, num_groups * size))) for _ in range(2))
        norms = pair(num_groups * size, num_groups, jnp.float64)
        ours, theirs = (value_and_gradients(norm, x, weight) for norm in norms)
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_half_precision_goes_in_and_out_with_float32_between():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(30, 1, size=(2, 8, 8, 16)), jnp.bfloat16)
    ours, theirs = pair(16, 4, jnp.bfloat16)
    assert ours(x).dtype == jnp.bfloat16
    exact = pair(16, 4)[0](x.astype(jnp.float32))
    errors = [float(jnp.max(jnp.abs(norm(x).astype(jnp.float32) - exact))) for norm in (ours, theirs)]
    assert errors[0] <= 2.0**-6  # half a unit in the last place of numbers up to 8
    assert errors[0] <= errors[1]  # flax rounds the parameters too
    leaves = value_and_gradients(ours, x, jnp.ones(x.shape))
    assert {leaf.dtype for leaf in leaves[1:-1]} == {jnp.dtype(jnp.float32)}
    assert leaves[-1].dtype == jnp.bfloat16


def test_the_result_is_rounded_once():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(2, 4, 4, 8)), jnp.bfloat16)
    ours, theirs = pair(8, 4, jnp.float32)
    assert ours(x).dtype == jnp.float32
    np.testing.assert_allclose(ours(x), theirs(x), atol=1e-5)
    assert ours(x[:0]).shape == (0, 4, 4, 8)


def test_a_mask_is_refused():
    with pytest.raises(ValueError, match="takes no mask"):
        pair(8, 4)[0](jnp.ones((1, 2, 2, 8)), mask=jnp.ones((1, 2, 2, 8)))


def test_an_image_of_one_colour_has_a_finite_gradient():
    norm = group_norm(8, 4, rngs=nnx.Rngs(0))
    leaves = value_and_gradients(norm, jnp.full((2, 4, 4, 8), 3.0), jnp.ones((2, 4, 4, 8)))
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in leaves)


def test_every_group_of_a_batch_has_its_own_gradient():
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(3, 2, 4, 4, 6)), jnp.float32)
    params = tuple(jnp.asarray(rng.normal(size=6), jnp.float32) for _ in range(2))

    def loss(params, x):
        return jnp.sum(jnp.sin(normalize(x, *params, 3, 1e-5)))

    _, together = jax.jit(group_value_and_grad(loss))(params, x)
    gradient = jax.jit(jax.grad(loss))
    one_by_one = [gradient(params, part) for part in x]
    jax.tree.map(lambda a, *b: np.testing.assert_allclose(a, np.stack(b), rtol=1e-5, atol=1e-5), together, *one_by_one)


@pytest.mark.parametrize(("features", "groups", "expected"), [(16, 32, 16), (24, 16, 8), (64, 32, 32)])
def test_the_number_of_groups_divides_the_channels(features, groups, expected):
    assert group_norm(features, groups, rngs=nnx.Rngs(0)).num_groups == expected
