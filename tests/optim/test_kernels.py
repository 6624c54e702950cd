"""The GPU kernels equal the plain versions to rounding (here in Pallas's interpreter), and lower for CUDA."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

from discover.optim import (
    discover,
    discover_igt,
    family,
    leaves,
    mean_over_groups,
    split_kernel,
    take_step,
    update_kernel,
)
from discover.optim.weight_gradient import (
    MULTIPROCESSORS,
    Tiles,
    Window,
    choose_parts,
    choose_tiles,
    grouped_weight_gradient,
)

pytestmark = pytest.mark.float32


def compiled(function, *arguments):
    return jax.jit(lambda *arguments: function(*arguments))(*arguments)  # not what was traced before


def batch(num_groups, num_clusters, shape, buffer_dtype, estimate=False):
    rng = np.random.default_rng(num_groups)
    ids = jnp.asarray(rng.integers(-1, num_clusters, num_groups), jnp.int32)
    sizes = jnp.asarray(rng.integers(0, 4, num_groups))
    seen = jnp.asarray(rng.integers(1, 50, num_clusters), jnp.float32) if estimate else None
    weights, _ = family.batch_weights(
        ids, sizes, jnp.full(num_clusters, 1 / num_clusters), seen, correction=0.2, rate=family.proportional_rate(0.9)
    )
    grads = rng.normal(size=(num_groups, *shape))
    grads[~np.asarray(weights.valid)] = np.nan
    mean, buffers = rng.normal(size=shape), rng.normal(size=(num_clusters, *shape))
    return weights, jnp.asarray(grads, jnp.float32), jnp.asarray(mean, jnp.float32), jnp.asarray(buffers, buffer_dtype)


@pytest.mark.parametrize(
    ("num_groups", "num_clusters", "shape", "dtype", "estimate"),
    [
        (1, 3, (3, 3, 2, 5), jnp.float32, False),
        (4, 5, (37, 11), jnp.float32, True),
        (8, 3, (600,), jnp.bfloat16, False),
        (5, 100, (), jnp.float32, False),
    ],
)
@pytest.mark.parametrize("affine", [False, True])
def test_the_update_kernel_equals_the_rule(num_groups, num_clusters, shape, dtype, estimate, affine):
    case = batch(num_groups, num_clusters, shape, dtype, estimate)
    if affine:
        case = (*case, family.Affine(0.3, jnp.linspace(-1, 1, case[2].size).reshape(shape).astype(jnp.float32)))
    plain = compiled(family.apply_rule, *case)
    kernel = compiled(lambda w, *rest: update_kernel.apply_rule(update_kernel.pack(w), *rest, interpret=True), *case)
    for name, expected, actual in zip(("direction", "mean", "buffers"), plain, kernel):
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype
        wide = [np.asarray(a, np.float32) for a in (actual, expected)]
        tolerance = 1e-2 if name == "buffers" and dtype == jnp.bfloat16 else 2e-6
        np.testing.assert_allclose(*wide, atol=tolerance, err_msg=name)


def reference(x, dy, window):
    shape = jax.ShapeDtypeStruct((*window.taps, x.shape[-1], dy.shape[-1]), x.dtype)

    def one(x, dy):
        def conv(w):
            return lax.conv_general_dilated(
                x, w, window.strides, window.padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

        return jax.linear_transpose(conv, shape)(dy)[0]

    return jax.vmap(one)(x, dy)


@pytest.mark.parametrize(
    ("image", "window"),
    [
        ((8, 8), Window((3, 3), (1, 1), ((1, 1), (1, 1)))),
        ((8, 8), Window((3, 3), (2, 2), ((0, 1), (0, 1)))),
        ((9, 8), Window((5, 3), (2, 2), ((2, 2), (1, 1)))),
        ((6, 10), Window((1, 3), (1, 1), ((0, 0), (2, 0)))),
        ((9, 5), Window((3, 1), (2, 1), ((0, 0), (0, 0)))),
    ],
)
def test_the_weight_gradient_kernel_equals_the_convolutions(image, window):
    rng = np.random.default_rng(0)
    sizes = [(n + sum(p) - t) // s + 1 for n, t, s, p in zip(image, *window)]
    x = jnp.asarray(rng.normal(size=(2, 2, *image, 16)), jnp.float32)
    dy = jnp.asarray(rng.normal(size=(2, 2, *sizes, 24)), jnp.float32)
    positions = 2 * sizes[0] * sizes[1]
    for parts in (n for n in (1, 2, 5, 8) if positions % n == 0):  # also such that a part begins within an image
        tiles = Tiles(32, 16, positions // parts, 4, 2, 1)
        kernel = grouped_weight_gradient(x, dy, window, tiles, parts=parts, interpret=True)
        np.testing.assert_allclose(kernel, reference(x, dy, window), atol=1e-4)


def test_the_kernels_lower_for_cuda_at_the_papers_shapes():
    def shaped(*shape, dtype=jnp.bfloat16):
        return jax.ShapeDtypeStruct(shape, dtype)

    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
    for size, channels in ((32, 160), (16, 320), (8, 640)):
        tiles = choose_tiles(window, channels, channels, 32 * size * size)
        x = shaped(8, 32, size, size, channels)
        traced = jax.jit(lambda x, dy, t=tiles: grouped_weight_gradient(x, dy, window, t)).trace(x, x)
        assert "grouped_weight_gradient" in traced.lower(lowering_platforms=("cuda",)).as_text()
    weights, *_ = batch(8, 10, (5,), jnp.float32)
    case = (
        update_kernel.pack(weights),
        shaped(8, 1000),
        shaped(1000, dtype=jnp.float32),
        shaped(10, 1000, dtype=jnp.float32),
    )
    numbers = jnp.array([0.1, 0.1, 0.1])
    for update in (
        update_kernel.apply_rule,
        lambda *case: update_kernel.apply_rule(*case, None, leaves.Move(case[2], numbers, True, True)),
    ):
        assert "discover_update" in jax.jit(update).trace(*case).lower(lowering_platforms=("cuda",)).as_text()
    joined = (shaped(1, 100 * 640, dtype=jnp.float32), shaped(10, 100 * 640, dtype=jnp.float32))
    cut = jax.jit(lambda *arrays: split_kernel.split(arrays, 100 * [640])).trace(*joined)
    kernels = sum(e.primitive.name == "pallas_call" for e in cut.jaxpr.eqns)
    assert kernels == -(-2 * 100 // split_kernel.MOST_PARTS) == 2
    assert "discover_split" in cut.lower(lowering_platforms=("cuda",)).as_text()


def test_shapes_that_the_kernel_cannot_cut_up_are_left_to_the_library():
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
    assert choose_tiles(window, 3, 16, 1024) is None
    assert choose_tiles(window, 16, 10, 1024) is None
    assert choose_tiles(window, 16, 16, 100) is None


SHAPES = {"scale": (7,), "kernel": (3, 5), "shift": (), "none": (0, 4)}


@pytest.fixture
def gpu(monkeypatch):
    """The way of a GPU, in Pallas's interpreter; the shapes that the update kernel was given."""
    shapes, update, cut = [], update_kernel.apply_rule, split_kernel.split

    def counted(scalars, grads, mean, *rest):
        shapes.append(mean.shape)
        return update(scalars, grads, mean, *rest, block=8, interpret=True)

    def on():
        monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
        monkeypatch.setattr(update_kernel, "apply_rule", counted)
        monkeypatch.setattr(split_kernel, "split", functools.partial(cut, block=8, interpret=True))
        return shapes

    return on


def random_tree(rng, *lead):
    return {name: jnp.asarray(rng.normal(size=(*lead, *shape)), jnp.float32) for name, shape in SHAPES.items()}


def one_step(tx, params, grads):
    """One step from a state that is not zero."""
    ids, sizes = jnp.array([2, 0, 2, 1]), jnp.array([3, 2, 1, 0])
    state = jax.tree.map(lambda s: s + jnp.ones_like(s), tx.init(params))
    return tx.update(grads, state, params, cluster_ids=ids, group_sizes=sizes)


def wide(array):
    return np.asarray(array, np.float32)


def assert_identical(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def assert_same(fast, plain):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), fast, plain)


@pytest.mark.parametrize(("small", "expected"), [(0, [(), (3, 5), (7,)]), (3 * 7, [(3, 5), (8,)]), (2**18, [(23,)])])
def test_on_a_gpu_small_parameters_take_the_kernel_together_and_the_same_step(monkeypatch, gpu, small, expected):
    rng = np.random.default_rng(0)
    params, grads = random_tree(rng), random_tree(rng, 4)
    grads["kernel"] = grads["kernel"].astype(jnp.bfloat16)  # as matrices of a network in bfloat16
    tx = discover(0.1, family.Clusters.uniform(3), beta=0.9, nu=0.7, l2=0.1)
    step = functools.partial(one_step, tx)
    plain = compiled(step, params, grads)
    monkeypatch.setattr(leaves, "SMALL", small)
    shapes = gpu()
    assert_same(compiled(step, params, grads), plain)
    assert sorted(shapes) == expected


def test_joined_parameters_of_several_networks_are_updated_side_by_side(gpu):
    rng = np.random.default_rng(0)
    params, grads = random_tree(rng, 2), random_tree(rng, 2, 4)
    tx = discover_igt(0.1, family.Clusters.uniform(3), l2=0.1)
    step = jax.vmap(functools.partial(one_step, tx))
    plain = compiled(step, params, grads)
    shapes = gpu()
    assert_same(compiled(step, params, grads), plain)
    assert set(shapes) == {(23,)}


def test_parameters_that_the_kernel_cannot_take_are_not_joined(gpu):
    params = {"a": jnp.ones(3, jnp.complex64), "b": jnp.ones((2, 2), jnp.complex64), "c": jnp.ones(4), "d": jnp.ones(5)}
    grads = jax.tree.map(lambda p: jnp.stack([p, 2 * p, 3 * p, 4 * p]), params)
    tx = family.scale_by_discover(family.Clusters.uniform(3))
    step = functools.partial(one_step, tx)
    plain = compiled(step, params, grads)
    shapes = gpu()
    assert_same(compiled(step, params, grads), plain)
    assert set(shapes) == {(9,)}


def test_gradients_of_vectors_reach_the_kernel_through_a_gather(gpu):
    """It keeps XLA from imposing the kernel's memory layout on activations."""
    shapes = gpu()
    tx = family.scale_by_discover(family.Clusters.uniform(3))
    params = {"a": jnp.ones(7), "b": jnp.ones(9)}
    grads = jax.tree.map(lambda p: jnp.ones((4, *p.shape)), params)
    program = jax.make_jaxpr(lambda g, s: tx.update(g, s, cluster_ids=jnp.arange(4) % 3))(grads, tx.init(params))
    assert shapes == [(16,)]
    kernel = next(e for e in program.jaxpr.eqns if e.primitive.name == "pallas_call")
    sources = {v: e for e in program.jaxpr.eqns for v in e.outvars}
    source = next(sources[v] for v in kernel.invars if v.aval.shape == (4, 16))
    while source.primitive.name in ("reshape", "pjit", "jit"):
        source = sources[source.invars[0]]
    assert source.primitive.name == "gather"


@pytest.mark.parametrize(
    ("sizes", "num_rows", "most_parts"),
    [([21], [1], 9), ([8, 3, 1, 21, 8], [1, 3], 128), ([3, 8, 8, 1, 21, 5, 2], [2, 1, 3], 7), ([1, 16, 1], [2], 1)],
)
def test_the_split_kernel_cuts_joined_arrays_into_their_parts(sizes, num_rows, most_parts):
    dtypes = (jnp.float32, jnp.bfloat16, jnp.float16)
    numbers = [jnp.arange(n * sum(sizes)).reshape(n, -1) % 251 for n in num_rows]  # whole numbers that bfloat16 has
    arrays = [each.astype(dtype) for each, dtype in zip(numbers, dtypes)]
    with mock.patch.object(split_kernel, "MOST_PARTS", most_parts):
        found = compiled(lambda *arrays: split_kernel.split(arrays, sizes, block=8, interpret=True), *arrays)
    assert len(found) == len(arrays)
    for array, parts in zip(arrays, found):
        for expected, actual in zip(np.split(array, np.cumsum(sizes)[:-1], axis=1), parts, strict=True):
            np.testing.assert_array_equal(expected, actual)


def steps(take, tx, params, grads):
    """Two steps from a state that is not zero, the second of them on a batch without examples."""
    state = jax.tree.map(lambda s: s + jnp.ones_like(s), tx.init(params))
    for sizes in ([3, 2, 1, 0], [0, 0, 0, 0]):
        ids, sizes = jnp.array([2, 0, 2, 1]), jnp.array(sizes)
        params, state = take(tx, grads, state, params, cluster_ids=ids, group_sizes=sizes)
    return params, state


def update_and_add(tx, grads, state, params, **extra):
    updates, state = tx.update(grads, state, params, **extra)
    return optax.apply_updates(params, updates), state


@pytest.mark.parametrize(
    ("options", "small", "expected"),
    [
        ({"weight_decay": 0.2}, 0, {(), (3, 5), (7,)}),
        ({"l2": 0.1, "mask": lambda params: jax.tree.map(lambda p: p.ndim > 1, params)}, 2**18, {(8,), (3, 5)}),
        ({"weight_decay": 0.2, "mask": {"scale": True, "kernel": False, "shift": True}}, 2**18, {(8,), (3, 5)}),
        ({"buffer_dtype": jnp.bfloat16, "l2": 0.1, "weight_decay": 0.2}, 2**18, {(23,)}),
    ],
)
def test_on_a_gpu_the_kernel_moves_the_parameters_as_the_sum_would(monkeypatch, gpu, options, small, expected):
    rng = np.random.default_rng(0)
    params, grads = random_tree(rng), random_tree(rng, 4)
    del params["none"], grads["none"]
    rate = optax.linear_schedule(0.3, 0.1, 5)
    tx = discover(rate, family.Clusters.uniform(3), beta=0.9, nu=0.7, **options)
    plain = compiled(functools.partial(steps, update_and_add, tx), params, grads)
    monkeypatch.setattr(leaves, "SMALL", small)
    shapes = gpu()
    program = functools.partial(steps, take_step, tx)
    fast = compiled(program, params, grads)
    assert set(shapes) == expected
    in_one = str(jax.make_jaxpr(program)(params, grads)).count(MOVED)
    assert in_one == 2 * len(expected)
    assert jax.tree.structure(fast) == jax.tree.structure(plain)
    tolerance = 2e-2 if "buffer_dtype" in options else 1e-6
    jax.tree.map(lambda a, b: np.testing.assert_allclose(wide(a), wide(b), atol=tolerance), fast, plain)
    assert fast[1][-1].count == 2  # the learning rate's: one more than it had


MOVED = "input_output_aliases=((3, 1), (4, 2), (6, 0))"


@pytest.mark.parametrize(
    "params",
    [{"a": jnp.ones(3), "b": jnp.ones(2, jnp.bfloat16)}, {"a": jnp.ones(3), "b": jnp.ones((0, 2))}],
)
def test_parameters_that_the_kernel_cannot_move_are_updated_and_added(gpu, params):
    grads = jax.tree.map(lambda p: jnp.stack([p, 2 * p, 3 * p, 4 * p]), params)
    tx = discover(0.1, family.Clusters.uniform(3), weight_decay=0.1)
    plain = compiled(functools.partial(steps, update_and_add, tx), params, grads)
    gpu()
    program = functools.partial(steps, take_step, tx)
    assert MOVED not in str(jax.make_jaxpr(program)(params, grads))
    fast = compiled(program, params, grads)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(wide(a), wide(b), atol=1e-6), fast, plain)


@pytest.mark.parametrize(
    "options",
    [{"affine": family.Affine(2.0, jnp.full(3, 10.0))}, {"group_sizes": jnp.ones(4)}],
    ids=["affine", "sizes"],
)
@pytest.mark.parametrize("state_dtype", [jnp.float32, jnp.float64])
def test_a_step_is_the_update_whatever_else_it_is_given(gpu, options, state_dtype):
    with jax.enable_x64(True):
        tx = discover(0.1, family.Clusters.uniform(3), weight_decay=0.1)
        params = np.arange(3, dtype=np.float32)
        state = jax.tree.map(lambda x: x.astype(state_dtype) + 1, tx.init(jnp.asarray(params)))
        call = (jnp.ones((4, 3), jnp.float32), state, params)
        ids = jnp.arange(4) % 3
        plain = update_and_add(tx, *call, cluster_ids=ids, **options)
        gpu()
        fast = take_step(tx, *call, cluster_ids=ids, **options)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), fast, plain)


def test_a_mask_may_be_the_upper_part_of_a_tree(gpu):
    params = {"a": {"b": jnp.ones(3), "c": jnp.ones(2)}, "d": (jnp.ones(4), None)}
    grads = jax.tree.map(lambda p: jnp.stack([p, 2 * p, 3 * p, 4 * p]), params)
    masks = [{"a": True, "d": False}, {"a": {"b": True, "c": True}, "d": (False, None)}]
    txs = [discover(0.1, family.Clusters.uniform(3), l2=0.1, mask=mask) for mask in masks]
    one, other = (compiled(functools.partial(steps, update_and_add, tx), params, grads) for tx in txs)
    assert_identical(one, other)
    gpu()
    assert_same(compiled(functools.partial(steps, take_step, txs[0]), params, grads), one)


@pytest.mark.parametrize(("decay", "moves"), [(1e-4, True), (0.0, False)])
def test_the_smallest_decay_is_not_rounded_away(gpu, decay, moves):
    """1 − λμ is 1 in float32 for λμ = 1e-8, but that much may tip the scales of a step."""
    tx = discover(1e-4, family.Clusters.uniform(3), weight_decay=decay)
    state = tx.init(jnp.ones(3))
    state = (state[0]._replace(mean=jnp.full(3, 2.5e-4)), *state[1:])  # θ − μd alone is 1 again
    gpu()
    moved, _ = take_step(tx, jnp.zeros((1, 3)), state, jnp.ones(3), cluster_ids=jnp.array([0]))
    assert bool(jnp.all(moved < 1)) == moves


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_an_empty_batch_moves_nothing_and_no_penalty_touches_nothing(gpu, bad):
    tx = discover(0.1, family.Clusters.uniform(3), weight_decay=0.1)
    params = jnp.array([1.0, 2.0])
    state = tx.init(params)
    broken = (state[0]._replace(mean=jnp.array([bad, 0.0])), *state[1:])
    gpu()
    moved, _ = take_step(tx, jnp.ones((2, 2)), broken, params, cluster_ids=jnp.array([-1, -1]))
    np.testing.assert_array_equal(moved, params)
    _, after = take_step(tx, jnp.ones((2, 2)), state, jnp.array([bad, 2.0]), cluster_ids=jnp.array([0, 1]))
    assert jnp.all(jnp.isfinite(after[0].mean))
    assert jnp.all(jnp.isfinite(after[0].buffers))


def test_traced_hyperparameters_and_learnt_probabilities_move_the_same(gpu):
    rng = np.random.default_rng(0)
    params, grads = random_tree(rng), random_tree(rng, 4)
    del params["none"], grads["none"]

    def program(take, rate, decay, l2, params, grads):
        tx = discover(rate, family.Clusters.uniform(3), weight_decay=decay, l2=l2, estimate_probs=True)
        return steps(take, tx, params, grads)

    numbers = tuple(jnp.float32(n) for n in (0.1, 0.2, 0.3))
    plain = compiled(functools.partial(program, update_and_add), *numbers, params, grads)
    gpu()
    fast = functools.partial(program, take_step)
    assert MOVED in str(jax.make_jaxpr(fast)(*numbers, params, grads))
    assert_same(compiled(fast, *numbers, params, grads), plain)


@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.chain(mean_over_groups(), optax.adam(0.1)),
        lambda: discover(0.1, family.Clusters.uniform(3), l2=0.1),  # and on a CPU this is exact too
    ],
)
def test_any_optimizer_takes_a_step(make):
    params, grads = {"a": jnp.ones(3)}, {"a": jnp.arange(12.0).reshape(4, 3)}
    tx = make()
    step = functools.partial(steps, take_step, tx)
    assert_identical(
        compiled(step, params, grads), compiled(functools.partial(steps, update_and_add, tx), params, grads)
    )


def test_an_optimizer_without_groups_takes_a_step():
    params = jnp.ones(3)
    tx = optax.sgd(0.1)
    moved, _ = take_step(tx, jnp.ones(3), tx.init(params), params, cluster_ids=jnp.array([0]))
    np.testing.assert_allclose(moved, 0.9 * params)


def test_a_step_without_cluster_ids_says_what_is_missing(gpu):
    gpu()
    tx = discover(0.1, family.Clusters.uniform(3))
    with pytest.raises(TypeError, match="cluster_ids is missing"):
        take_step(tx, jnp.ones((4, 2)), tx.init(jnp.ones(2)), jnp.ones(2))


def test_several_networks_are_moved_side_by_side(gpu):
    rng = np.random.default_rng(0)
    params, grads = random_tree(rng, 2), random_tree(rng, 2, 4)
    del params["none"], grads["none"]

    def program(rates, params, grads):
        tx = lambda rate: discover(rate, family.Clusters.uniform(3), l2=0.1)  # noqa: E731
        return jax.vmap(lambda rate, params, grads: steps(take_step, tx(rate), params, grads))(rates, params, grads)

    rates = jnp.array([0.1, 0.3])
    plain = compiled(program, rates, params, grads)
    gpu()
    assert MOVED in str(jax.make_jaxpr(program)(rates, params, grads))
    assert_same(compiled(program, rates, params, grads), plain)


@pytest.mark.parametrize(
    ("num_groups", "images", "size", "channels"), [(4, 64, 28, 128), (4, 64, 14, 256), (8, 32, 16, 320)]
)
def test_the_parts_of_a_group_are_equal_and_leave_no_multiprocessor_idle_for_long(num_groups, images, size, channels):
    window = Window((3, 3), (1, 1), ((1, 1), (1, 1)))
    positions = images * size * size
    tiles = choose_tiles(window, channels, channels, positions)
    parts = choose_parts(window, tiles, (num_groups, images, size, size, channels), channels, positions)
    assert positions % (parts * tiles.positions) == 0
    blocks = num_groups * parts * 3 * -(-3 * channels // tiles.rows) * -(-channels // tiles.columns)
    waves = blocks / (MULTIPROCESSORS * tiles.at_once)
    assert waves / np.ceil(waves) > 0.9


def test_no_load_or_store_of_the_split_kernel_is_without_a_mask():
    """On a GPU it would read or write other memory, which the interpreter does not do."""
    arrays = (jnp.ones((1, 30)), jnp.ones((3, 30)))
    program = jax.make_jaxpr(lambda *arrays: split_kernel.split(arrays, [9, 20, 1], block=8))(*arrays)
    masks = {"masked_load": -2, "masked_swap": -1}  # where the primitives have theirs
    found = []

    def walk(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name in masks:
                arguments = jax.tree.unflatten(equation.params["args_tree"], equation.invars)
                found.append(arguments[masks[equation.primitive.name]])
            for value in jax.tree.leaves(equation.params, is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    walk(inner)

    walk(program.jaxpr)
    assert len(found) == 2 * (1 + 3)  # of each array a load, and a store for each part
    assert all(mask is not None and mask.aval.dtype == bool for mask in found)
