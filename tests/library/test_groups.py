"""Per-group losses and gradients, micro-batches, and the convolution that splits by group."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import discover
from tests.library import problem

GROUPS = (
    np.random.default_rng(0).normal(size=(4, 6, problem.FEATURES)),
    np.random.default_rng(1).integers(problem.CLASSES, size=(4, 6)),
)


def one_by_one(loss, params, batch, *rest):
    groups = [jax.tree.map(lambda leaf, k=k: leaf[k], batch) for k in range(4)]
    results = [jax.value_and_grad(loss)(params, group, *rest) for group in groups]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *results)


def close(actual, expected, rtol=1e-12):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-12), actual, expected)


@pytest.mark.parametrize("mode", ["vmap", "map"])
def test_one_loss_and_gradient_per_group(mode):
    params = problem.start()
    losses, grads = discover.group_value_and_grad(problem.loss, mode=mode)(params, GROUPS)
    close((losses, grads), one_by_one(problem.loss, params, GROUPS))


@pytest.mark.parametrize("mode", ["vmap", "map"])
def test_auxiliary_output_and_shared_arguments(mode):
    def loss(params, group, scale):
        value = scale * problem.loss(params, group)
        return value, {"twice": 2 * value}

    f = discover.group_value_and_grad(loss, has_aux=True, mode=mode)
    (losses, aux), _ = f(problem.start(), GROUPS, 3.0)
    plain, _ = discover.group_value_and_grad(problem.loss)(problem.start(), GROUPS)
    close(losses, 3 * plain)
    close(aux["twice"], 6 * plain)


@pytest.mark.parametrize("mode", ["vmap", "map"])
def test_each_group_gets_its_own_key(mode):
    def loss(params, group, *, key):
        return jax.random.uniform(key) + 0 * problem.loss(params, group)

    key = jax.random.key(0)
    losses, _ = discover.group_value_and_grad(loss, mode=mode)(problem.start(), GROUPS, key=key)
    close(losses, jax.vmap(jax.random.uniform)(jax.random.split(key, 4)))
    assert len(set(np.asarray(losses).tolist())) == 4


def test_accumulated_micro_batches_equal_one_large_batch():
    params = problem.start()
    per_group = discover.group_value_and_grad(problem.loss)
    micro = jax.tree.map(lambda leaf: leaf.reshape(2, 2, *leaf.shape[1:]), GROUPS)
    close(discover.accumulate_groups(per_group)(params, micro), per_group(params, GROUPS))


def test_a_batch_whose_leaves_disagree_about_the_groups_is_refused():
    with pytest.raises(ValueError, match=r"same number of groups, got \[3, 4\]"):
        discover.group_value_and_grad(problem.loss)(problem.start(), (GROUPS[0], GROUPS[1][:3]))
    with pytest.raises(ValueError, match="leading group axis"):
        discover.group_value_and_grad(problem.loss)(problem.start(), jnp.float32(1))
    with pytest.raises(ValueError, match=r"mode must be one of 'vmap', 'map', got 'pmap'"):
        discover.group_value_and_grad(problem.loss, mode="pmap")


@st.composite
def convolutions(draw):
    features = draw(st.sampled_from([1, 2]))
    return {
        "window_strides": draw(st.sampled_from([(1, 1), (2, 1), (2, 2)])),
        "padding": draw(st.sampled_from(["SAME", "VALID", [(1, 1), (0, 2)]])),
        "rhs_dilation": draw(st.sampled_from([None, (1, 1), (2, 1)])),
        "dimension_numbers": draw(st.sampled_from([("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")])),
        "feature_group_count": features,
    }


@settings(max_examples=8)
@given(convolutions(), st.integers(0, 100))
def test_the_convolution_has_the_values_and_gradients_of_lax(options, seed):
    rng = np.random.default_rng(seed)
    channels_last = options["dimension_numbers"][0] == "NHWC"
    shape, kernel = ((3, 2, 6, 7, 4), (3, 2, 4 // options["feature_group_count"], 4))
    lhs, rhs = rng.normal(size=shape), rng.normal(size=kernel)
    if not channels_last:
        lhs, rhs = np.moveaxis(lhs, -1, 2), np.transpose(rhs, (3, 2, 0, 1))

    def loss(conv):
        return lambda w, x: jnp.sum(jnp.sin(conv(x, w, **options)))

    ours, theirs = (
        jax.jit(jax.vmap(jax.value_and_grad(loss(conv), (0, 1)), (None, 0)))(rhs, lhs)
        for conv in (discover.grouped_conv_general_dilated, lax.conv_general_dilated)
    )
    close(ours, theirs, rtol=1e-9)


def test_the_convolution_splits_without_feature_groups():
    """What makes it fast: no convolution of the compiled per-group gradient has feature or batch groups."""

    def hlo(conv):
        def loss(w, x):
            return jnp.sum(conv(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) ** 2)

        per_group = jax.jit(discover.group_value_and_grad(loss))
        return per_group.lower(jnp.ones((3, 3, 4, 8)), jnp.ones((3, 2, 8, 8, 4))).as_text()

    def feature_groups(text):
        return [n for n in (1, 3) if f"feature_group_count = {n}" in text or f"batch_group_count = {n}" in text]

    assert 3 in feature_groups(hlo(lax.conv_general_dilated))
    assert 3 not in feature_groups(hlo(discover.grouped_conv_general_dilated))


def test_a_map_over_single_examples_is_an_ordinary_convolution():
    """How equinox models are written: no convolution per example appears."""

    def loss(w, x):
        def one(image):
            return discover.grouped_conv_general_dilated(
                image[None], w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )[0]

        return jnp.sum(jax.vmap(one)(x) ** 2)

    per_group = jax.jit(discover.group_value_and_grad(loss))
    text = per_group.lower(jnp.ones((3, 3, 4, 8)), jnp.ones((2, 16, 8, 8, 4))).as_text()
    assert text.count("stablehlo.convolution") <= 3


def images():
    return np.random.default_rng(0).normal(size=(4, 2, 8, 8, 3))


def test_it_works_in_flax_nnx():
    def gradients(conv):
        model = nnx.Conv(3, 4, (3, 3), rngs=nnx.Rngs(0), **conv)
        graph, params = nnx.split(model, nnx.Param)
        return discover.group_value_and_grad(lambda p, x: jnp.mean(nnx.merge(graph, p)(x) ** 2))(params, images())

    with jax.numpy_rank_promotion("allow"):
        close(gradients({"conv_general_dilated": discover.grouped_conv_general_dilated}), gradients({}), rtol=1e-5)


def test_it_works_in_flax_linen():
    def gradients(**conv):
        model = nn.Conv(4, (3, 3), **conv)
        params = model.init(jax.random.key(0), images()[0])
        return discover.group_value_and_grad(lambda p, x: jnp.mean(model.apply(p, x) ** 2))(params, images())

    with jax.numpy_rank_promotion("allow"):
        close(gradients(conv_general_dilated=discover.grouped_conv_general_dilated), gradients(), rtol=1e-5)


def test_it_works_in_equinox():
    class Model(eqx.Module):
        weight: jax.Array
        plain: bool = eqx.field(static=True)

        def __call__(self, x):
            conv = lax.conv_general_dilated if self.plain else discover.grouped_conv_general_dilated
            return conv(x, self.weight, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def gradients(plain):
        model = Model(jax.random.normal(jax.random.key(0), (3, 3, 3, 4)), plain)
        return discover.group_value_and_grad(lambda m, x: jnp.mean(m(x) ** 2))(model, images())

    losses, grads = gradients(False)
    plain_losses, plain_grads = gradients(True)
    close((losses, grads.weight), (plain_losses, plain_grads.weight), rtol=1e-9)
