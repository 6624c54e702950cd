"""Every row of the table "What works how" in docs/models.md: it works, or the sentence that it promises is said."""

import re
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen, nnx
from flax.training import train_state

import discover

X = np.random.default_rng(0).normal(size=(2, 8, 5)).astype(np.float32)
IDS = jnp.array([0, 2])
CLUSTERS = discover.Clusters.uniform(3)
TESTED = {}


def row(you_have):
    """Marks the test of one row."""

    def mark(test):
        TESTED[you_have] = test
        return test

    return mark


def linear(params, group):
    return jnp.mean((group @ params["kernel"] + params["bias"]) ** 2)


def squares(model, group):
    return jnp.mean(model(group) ** 2)


def expected(kernel, bias):
    """One gradient per group, of a linear layer."""
    each = [jax.grad(linear)({"kernel": kernel, "bias": bias}, group) for group in X]
    return jax.tree.map(lambda *parts: np.stack(parts), *each)


def check(kernel, bias, like):
    np.testing.assert_allclose(kernel, like["kernel"], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(bias, like["bias"], rtol=1e-5, atol=1e-7)


def stepped(params, grads):
    """The parameters after one step of Discover."""
    tx = discover.discover(0.1, CLUSTERS)
    return discover.take_step(tx, grads, tx.init(params), params, cluster_ids=IDS)[0]


@row("pure functions, Haiku")
def test_pure_functions():
    params = {"kernel": jnp.ones((5, 3)), "bias": jnp.ones(3)}
    losses, grads = discover.group_value_and_grad(linear)(params, X)
    assert losses.shape == (2,)
    check(grads["kernel"], grads["bias"], expected(**params))


@row("a whole nnx model")
def test_a_whole_nnx_model():
    model = nnx.Linear(5, 3, rngs=nnx.Rngs(0))
    _, grads = discover.group_value_and_grad(squares)(model, X)
    assert isinstance(grads, nnx.Linear)
    kernel, bias = model.kernel.get_value(), model.bias.get_value()
    check(grads.kernel.get_value(), grads.bias.get_value(), expected(kernel, bias))
    graph, params = nnx.split(model, nnx.Param)
    _, split = discover.group_value_and_grad(lambda p, x: squares(nnx.merge(graph, p), x))(params, X)
    check(split["kernel"].get_value(), split["bias"].get_value(), expected(kernel, bias))


def dropping():
    rngs = nnx.Rngs(0)
    return nnx.Sequential(nnx.Linear(5, 3, rngs=rngs), nnx.Dropout(0.5, rngs=rngs))


@row("an nnx model with dropout")
@pytest.mark.parametrize("mode", ["vmap", "map"])
def test_an_nnx_model_with_dropout(mode):
    graph, params, rest = nnx.split(dropping(), nnx.Param, ...)

    def loss(params, group, key):
        model = nnx.merge(graph, params, rest, copy=True)
        nnx.reseed(model, default=key)
        return squares(model, group)

    per_group = jax.jit(discover.group_value_and_grad(loss, mode=mode))
    key = jax.random.key(1)
    losses, grads = per_group(params, np.stack([X[0], X[0]]), key=key)
    assert losses[0] != losses[1]  # the same examples, and other units left out
    by_hand = [jax.value_and_grad(loss)(params, X[0], one) for one in jax.random.split(key, 2)]
    np.testing.assert_allclose(losses, [value for value, _ in by_hand], rtol=1e-5)
    for leaf, *parts in zip(*map(jax.tree.leaves, (grads, *(gradient for _, gradient in by_hand)))):
        np.testing.assert_allclose(leaf, np.stack(parts), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", ["vmap", "map"])
def test_an_nnx_model_with_dropout_handed_over_whole_or_without_a_copy_is_told_what_to_do(mode):
    with pytest.raises(TypeError, match=r"got dtype uint32 at layers/1/rngs/.*nnx.split\(model, nnx.Param, ...\)"):
        discover.group_value_and_grad(squares, mode=mode)(dropping(), X)
    graph, params, rest = nnx.split(dropping(), nnx.Param, ...)
    without_copy = discover.group_value_and_grad(lambda p, x: squares(nnx.merge(graph, p, rest), x), mode=mode)
    with pytest.raises(Exception, match="Cannot mutate RngCount") as error:
        without_copy(params, X)
    assert "work on a copy, nnx.merge(graphdef, params, rest, copy=True)" in "".join(error.value.__notes__)


@row("`nnx.Optimizer`")
def test_the_optimizer_of_nnx():
    model = nnx.Linear(5, 3, rngs=nnx.Rngs(0))
    params = nnx.state(model, nnx.Param)
    graph = nnx.graphdef(model)
    _, grads = discover.group_value_and_grad(lambda p, x: squares(nnx.merge(graph, p), x))(params, X)
    wanted = stepped(params, grads)
    optimizer = nnx.Optimizer(model, discover.discover(0.1, CLUSTERS), wrt=nnx.Param)
    optimizer.update(model, grads, cluster_ids=IDS)
    jax.tree.map(np.testing.assert_array_equal, nnx.state(model, nnx.Param), wanted)


@row("linen's `TrainState`")
def test_linens_train_state():
    class ClusteredState(train_state.TrainState):
        def apply_gradients(self, *, grads, cluster_ids, **changes):
            updates, opt_state = self.tx.update(grads, self.opt_state, self.params, cluster_ids=cluster_ids)
            params = optax.apply_updates(self.params, updates)
            return self.replace(step=self.step + 1, params=params, opt_state=opt_state, **changes)

    dense = linen.Dense(3)
    params, tx = dense.init(jax.random.key(0), X[0]), discover.discover(0.1, CLUSTERS)
    _, grads = discover.group_value_and_grad(lambda p, x: jnp.mean(dense.apply(p, x) ** 2))(params, X)
    state = ClusteredState.create(apply_fn=dense.apply, params=params, tx=tx)
    state = state.apply_gradients(grads=grads, cluster_ids=IDS)
    jax.tree.map(np.testing.assert_array_equal, state.params, stepped(params, grads))
    flaxs_own = train_state.TrainState.create(apply_fn=dense.apply, params=params, tx=tx)
    with pytest.raises(TypeError, match=r"flax's TrainState.apply_gradients takes them and does not hand them on"):
        flaxs_own.apply_gradients(grads=grads, cluster_ids=IDS)


@row("a whole equinox model")
def test_a_whole_equinox_model():
    def loss(model, group):
        return squares(jax.vmap(model), group)

    model = eqx.nn.MLP(5, 3, 4, 1, key=jax.random.key(0))
    with pytest.raises(TypeError, match=r"got custom_jvp at activation: .*eqx.partition\(model, eqx.is_inexact"):
        discover.group_value_and_grad(loss)(model, X)
    params, static = eqx.partition(model, eqx.is_inexact_array)
    _, grads = discover.group_value_and_grad(lambda p, x: loss(eqx.combine(p, static), x))(params, X)
    each = [eqx.filter_grad(loss)(model, group) for group in X]
    jax.tree.map(lambda g, *parts: np.testing.assert_allclose(g, np.stack(parts), rtol=1e-4, atol=1e-6), grads, *each)
    assert isinstance(eqx.combine(stepped(params, grads), static)(X[0, 0]), jax.Array)


@row("optax optimizers for some parameters, in a `partition`")
def test_optax_optimizers_beside_discover():
    params, grads = {"w": jnp.zeros((5, 3)), "b": jnp.zeros(3)}, {"w": jnp.ones((2, 5, 3)), "b": jnp.ones((2, 3))}
    adam = optax.chain(discover.mean_over_groups(), optax.adam(0.1))
    labels = {"w": "clustered", "b": "plain"}
    both = optax.partition({"clustered": discover.discover(0.1, CLUSTERS), "plain": adam}, labels)
    updates, _ = both.update(grads, both.init(params), params, cluster_ids=IDS)
    np.testing.assert_allclose(updates["b"], -0.1, rtol=1e-5)  # the first step of Adam
    np.testing.assert_allclose(updates["w"], stepped(params, grads)["w"])
    bare = optax.partition({"clustered": discover.discover(0.1, CLUSTERS), "plain": optax.adam(0.1)}, labels)
    with pytest.raises(ValueError, match=r"shape \(2, 3\) for a parameter of shape \(3,\).*mean_over_groups"):
        discover.take_step(bare, grads, bare.init(params), params, cluster_ids=IDS)


@row("integer parameters, or none at all")
@pytest.mark.parametrize(
    ("params", "error", "sentence"),
    [({"n": jnp.arange(3)}, TypeError, "got dtype int.* at n: set the others apart"), ({}, ValueError, "there are no")],
)
def test_integer_parameters_or_none_at_all(params, error, sentence):
    for call in (discover.discover(0.1, CLUSTERS).init, lambda p: discover.group_value_and_grad(linear)(p, X)):
        with pytest.raises(error, match=sentence):
            call(params)


def test_every_row_of_the_table_is_tested():
    page = (Path(__file__).parent.parent / "docs" / "models.md").read_text("utf-8")
    table = page.partition("| you have | do | where |\n|---|---|---|\n")[2].partition("\n\n")[0]
    assert re.findall(r"^\| (.*?) \|", table, re.MULTILINE) == list(TESTED)
