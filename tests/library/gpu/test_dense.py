"""Dense layers whose weight gradient splits by group on CPUs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from discover import group_value_and_grad
from discover.gpu.dense import grouped_dot_general


def gradients(dot_general, x, w):
    def loss(w, x):
        y = dot_general(x, w, (((x.ndim - 1,), (0,)), ((), ())), precision=None)
        return jnp.sum(jnp.sin(y) ** 3)

    losses, grads = group_value_and_grad(loss)(w, x)
    return losses, grads, jax.vmap(jax.grad(loss, argnums=1), (None, 0))(w, x)


@pytest.mark.parametrize("examples", [(3,), (20,), (4, 5)])
@pytest.mark.parametrize(("inputs", "outputs"), [(4, 7), (7, 4), (6, 6)])
@pytest.mark.parametrize("num_groups", [1, 3])
def test_values_and_gradients_are_those_of_jax(num_groups, inputs, outputs, examples):
    rng = np.random.default_rng(0)
    x, w = (
        jnp.asarray(rng.normal(size=(num_groups, *examples, inputs))),
        jnp.asarray(rng.normal(size=(inputs, outputs))),
    )
    for actual, expected in zip(*(gradients(one, x, w) for one in (grouped_dot_general, lax.dot_general)), strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(actual, expected, atol=1e-12)


def test_members_may_train_side_by_side():
    """Networks beside each other: a group's products are batched twice, and of these only one is over groups."""
    rng = np.random.default_rng(0)
    x, w = jnp.asarray(rng.normal(size=(2, 3, 5, 4))), jnp.asarray(rng.normal(size=(2, 4, 6)))
    found = [
        jax.vmap(lambda x, w, one=one: gradients(one, x, w)[1])(x, w) for one in (grouped_dot_general, lax.dot_general)
    ]
    np.testing.assert_allclose(*found, atol=1e-12)


def test_what_is_no_dense_layer_is_left_to_jax():
    x, w = jnp.ones((3, 4)), jnp.ones((5, 4))
    np.testing.assert_array_equal(grouped_dot_general(x, w, (((1,), (1,)), ((), ()))), 4 * np.ones((3, 5)))
