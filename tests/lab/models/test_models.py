"""The models: their sizes, their number types, and the convolution that can be replaced."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax import lax

from discover.gpu import device
from discover.lab.models import build_network, conv_as_matmul, standardize
from discover.lab.models.standardization import _sums, _sums_in_two_stages
from discover.lab.models.wide_resnet import WideResNet

SMALL = {
    "logistic": {},
    "mlp": {"width": 16, "dropout": 0.5},
    "cnn": {"width": 8, "dropout": 0.5},
    "wide_resnet": {"depth": 8, "width": 1, "dropout": 0.5},
    "resnet": {"depth": 14, "width": 8, "dropout": 0.5},
}
CONVOLUTIONS = {"cnn": 3, "wide_resnet": 1 + 6 + 2, "resnet": 1 + 4 * 3 + 4}


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "count"),
    [
        # The paper's WideResNet-26-10 is the 36.5M network that others call 28-10.
        ("wide_resnet", (32, 32, 3), 10, {"depth": 26, "width": 10}, 36_479_194),
        ("resnet", (224, 224, 3), 1000, {"depth": 50}, 25_557_032),
        ("cnn", (8, 8, 1), 10, {}, 24_058),
        ("mlp", (8, 8, 1), 10, {}, 64 * 128 + 128 + 128 * 10 + 10),
        ("mlp", (5,), 3, {"depth": 0}, 5 * 3 + 3),
        ("logistic", (8, 8, 1), 10, {}, 650),
    ],
)
def test_parameter_counts(name, shape, classes, options, count):
    network = build_network(name, shape, classes, **options)
    assert network.num_parameters == count
    params = jax.eval_shape(network.init, jax.random.key(0))
    assert sum(int(np.prod(leaf.shape)) for leaf in jax.tree.leaves(params)) == count


def test_the_depth_of_a_wide_resnet_may_count_the_shortcuts_or_not():
    counts = {build_network("wide_resnet", (8, 8, 3), 10, depth=d, width=1).num_parameters for d in (8, 10)}
    assert len(counts) == 1


def test_wide_resnet_has_16_groups_first_in_each_block_and_32_elsewhere():
    model = nnx.eval_shape(lambda: WideResNet((32, 32, 3), 10, rngs=nnx.Rngs(0)))
    assert [block.norm1.num_groups for block in model.blocks] == [16] * 12
    assert [block.norm2.num_groups for block in model.blocks] == [32] * 12
    assert model.norm.num_groups == 32
    assert {block.dropout_rate for block in model.blocks} == {0.3}


def random_params(network):
    """Random parameters without compiling the initialization."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0.1, 0.2, leaf.shape), leaf.dtype), shapes)


@pytest.mark.parametrize("name", SMALL)
def test_bfloat16_computes_with_float32_parameters_and_dropout_follows_its_key(name):
    half = build_network(name, (8, 8, 3), 4, dtype=jnp.bfloat16, **SMALL[name])
    params = random_params(half)
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}

    @jax.jit
    def logits(params, x):
        return [half.apply(params, x, key) for key in (None, jax.random.key(1), jax.random.key(2))]

    x = jax.random.uniform(jax.random.key(1), (2, 8, 8, 3))
    assert "bf16" in logits.lower(params, x).as_text()
    still, one, two = logits(params, x)
    assert still.dtype == jnp.float32
    assert still.shape == (2, 4)
    if name != "logistic":
        assert not np.array_equal(one, two)
        assert not np.array_equal(still, one)


def test_bfloat16_is_close_to_float32():
    networks = [build_network("cnn", (8, 8, 1), 4, depth=1, dtype=dtype) for dtype in (jnp.float32, jnp.bfloat16)]
    params = random_params(networks[0])
    x = jax.random.uniform(jax.random.key(1), (2, 8, 8, 1))
    full, half = (jax.jit(network.apply)(params, x) for network in networks)
    assert not np.array_equal(full, half)
    np.testing.assert_allclose(full, half, atol=0.1)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_every_convolution_calls_the_function_that_was_handed_in(name):
    calls = []

    def convolution(*arguments, **options):
        calls.append(arguments[1].shape)
        return lax.conv_general_dilated(*arguments, **options)

    network = build_network(name, (16, 16, 3), 4, conv_general_dilated=convolution, **SMALL[name])
    params = jax.eval_shape(network.init, jax.random.key(0))
    jax.eval_shape(network.apply, params, jnp.zeros((2, 16, 16, 3)))
    assert len(calls) == CONVOLUTIONS[name]


@pytest.mark.parametrize(("size", "kernel", "stride", "channels"), [(6, 3, 2, 1), (7, 5, 3, 3), (3, 5, 1, 1)])
def test_convolution_as_matrix_product_equals_the_convolution(size, kernel, stride, channels):
    keys = jax.random.split(jax.random.key(0), 2)
    x = jax.random.normal(keys[0], (2, size, size + 1, channels))
    w = jax.random.normal(keys[1], (kernel, kernel, channels, 4))

    def loss(function, x, w):
        numbers = ("NHWC", "HWIO", "NHWC")
        y = function(x, w, (stride, stride), "SAME", dimension_numbers=numbers)
        return jnp.sum(jnp.sin(y)), y

    gradient = jax.jit(jax.value_and_grad(loss, argnums=(1, 2), has_aux=True), static_argnums=0)
    (_, y), grads = gradient(conv_as_matmul, x, w)
    (_, expected), expected_grads = gradient(lax.conv_general_dilated, x, w)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)
    for a, b in zip(grads, expected_grads):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_standardized_kernels_have_mean_0_and_variance_1_over_fan_in():
    kernel = 3 + 5 * jax.random.normal(jax.random.key(0), (3, 3, 7, 4))
    result = np.asarray(standardize(kernel)).reshape(-1, 4)
    np.testing.assert_allclose(result.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(result.var(axis=0) * 63, 1, rtol=1e-5)
    np.testing.assert_allclose(standardize(2 * kernel + 1), standardize(kernel), atol=1e-5)


@pytest.mark.parametrize(("dtype", "by_group"), [(None, False), (None, True), (jnp.bfloat16, True)])
def test_the_gradient_of_standardization_is_that_of_its_definition(dtype, by_group, monkeypatch):
    if by_group:  # as a GPU makes it
        monkeypatch.setattr(device, "by_device", lambda *, cpu, gpu, other: gpu())
    rng = np.random.default_rng(0)
    kernel, weight = (jnp.asarray(rng.normal(0.5, 2, size=(3, 3, 5, 4)), jnp.float32) for _ in range(2))

    def definition(kernel):
        centred = kernel - jnp.mean(kernel, (0, 1, 2), keepdims=True)
        return (centred / jnp.sqrt(jnp.sum(centred**2, (0, 1, 2), keepdims=True))).astype(dtype or kernel.dtype)

    def gradient(function, weight):
        return jax.grad(lambda kernel: jnp.sum(weight.astype(dtype or kernel.dtype) * function(kernel)))(kernel)

    @jax.jit
    def gradients(groups):
        """Of each group, and the gradient of the first one's size."""
        functions = (functools.partial(standardize, dtype=dtype, by_group=by_group), definition)
        of_groups = [jax.vmap(functools.partial(gradient, function))(groups) for function in functions]
        return of_groups, [jax.grad(lambda w, f=f: jnp.sum(gradient(f, w) ** 2))(groups[0]) for f in functions]

    assert standardize(kernel, dtype=dtype, by_group=by_group).dtype == (dtype or kernel.dtype)
    (ours, theirs), twice = gradients(jnp.stack([weight, 2 * weight, weight**2]))
    assert ours.dtype == kernel.dtype
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    if dtype is None:
        np.testing.assert_allclose(*twice, atol=1e-4)


@pytest.mark.parametrize("fan_in", [1, 45, 603, 1152])
def test_sums_in_two_stages_are_sums(fan_in):
    """As a GPU makes them for the gradient of each group; a CPU never takes this way by itself."""
    parts = [jnp.asarray(np.random.default_rng(0).normal(size=(fan_in, 4)), jnp.float32)]
    np.testing.assert_allclose(_sums_in_two_stages(parts), _sums(parts), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (("wide_resnt", (8, 8, 3), 10), {}, "did you mean 'wide_resnet'"),
        (("wide_resnet", (8, 8, 3), 10), {"depth": 18}, "6n"),
        (("resnet", (8, 8, 3), 10), {"depth": 18}, "one of 14, 26, 50"),
        (("cnn", (64,), 10), {}, r"\(H, W, C\)"),
        (("logistic", (64,), 10), {"width": 3}, "has no width"),
    ],
)
def test_bad_models_are_refused_with_one_line(arguments, options, text):
    with pytest.raises(ValueError, match=text) as error:
        build_network(*arguments, **options)
    assert "\n" not in str(error.value)
