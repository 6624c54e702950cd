"""Every wrong call gets one line that names the value and what would be right."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import discover
from discover.registry import OPTIMIZERS
from discover.sharding import shard_by_parameter
from tests.library import table

CLUSTERS = discover.Clusters.uniform(3)
PARAMS = {"w": jnp.zeros((4, 2))}
GRADS = {"w": jnp.ones((5, 4, 2))}
IDS = jnp.zeros(5, jnp.int32)


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        ([0.5, 0.6], r"sum to 1, got a sum of 1.1"),
        ([1.5, -0.5], r"in \[0, 1\], got 1.5 for cluster 0"),
        ([0.5, -0.5, 1.0], r"in \[0, 1\], got -0.5 for cluster 1"),
        ([0.5, float("nan")], r"in \[0, 1\], got nan for cluster 1"),
        ([], r"at least one cluster, got none"),
        (0.5, r"sequence of numbers, one per cluster, got 0.5"),
    ],
)
def test_probabilities(probs, message):
    with pytest.raises(ValueError, match=message) as error:
        discover.Clusters(probs)
    assert "\n" not in str(error.value)


def test_counts():
    with pytest.raises(ValueError, match=r"not negative, got -1.0 for cluster 1"):
        discover.Clusters.from_counts([1, -1])
    with pytest.raises(ValueError, match="positive sum, got 0 over 2 clusters"):
        discover.Clusters.from_counts([0, 0])
    with pytest.raises(ValueError, match="num_clusters must be a whole number of at least 1, got 0"):
        discover.Clusters.uniform(0)


def test_clusters_are_hashable_and_nearly_normalised_sums_are_accepted():
    assert hash(discover.Clusters([0.25] * 4)) == hash(discover.Clusters.uniform(4))
    assert sum(discover.Clusters([1 / 3, 1 / 3, 0.3333333]).probs) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("value", [-0.1, 1.01, float("nan"), float("inf")])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_momentum_outside_the_unit_interval_is_named(name, value):
    for one in {"beta", "nu", "beta1", "beta2", "alpha"} & set(OPTIMIZERS[name].arguments):
        with pytest.raises(ValueError, match=rf"^{one} must be in \[0, 1\], got {value:g}$"):
            table.make(name, **{one: value})


def test_gradients_of_another_tree_are_refused():
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    tx = discover.discover(0.1, CLUSTERS)
    for grads in ({"b": jnp.ones((5, 2))}, {"a": jnp.ones((5, 2)), "c": jnp.ones((5, 2))}):
        with pytest.raises(ValueError, match="gradients must have the tree structure of the parameters"):
            tx.update(grads, tx.init(params), params, cluster_ids=IDS)


def test_numbers_that_are_none():
    with pytest.raises(TypeError, match="beta must be a number, got 'x'"):
        discover.discover(0.1, CLUSTERS, beta="x")
    with pytest.raises(ValueError, match=r"probs must be a sequence of numbers, one per cluster, got \['a'\]"):
        discover.Clusters(["a"])
    with pytest.raises(ValueError, match="counts must be a sequence of numbers, one per cluster, got 5"):
        discover.Clusters.from_counts(5)
    assert discover.Clusters.uniform(np.int64(3)) == discover.Clusters.uniform(3)
    with pytest.raises(ValueError, match=r"needs p_n above 0, got 0 for cluster 1"):
        discover.paper_discover(0.1, discover.Clusters([1.0, 0.0]), alpha=0.1)


def test_other_hyperparameters():
    with pytest.raises(ValueError, match=r"learning_rate must be finite and at least 0, got -0.1"):
        discover.sgd(-0.1)
    with pytest.raises(ValueError, match="weight_decay must be finite and at least 0, got inf"):
        discover.momentum(0.1, weight_decay=float("inf"))
    with pytest.raises(ValueError, match="l2 must be finite and at least 0, got -1"):
        discover.adam(0.1, l2=-1)
    with pytest.raises(ValueError, match="rate must be one of 'proportional', 'per_visit', got 'sometimes'"):
        discover.discover(0.1, CLUSTERS, rate="sometimes")
    with pytest.raises(ValueError, match=r"tail_fraction must be None or at least 1, got 0.5"):
        discover.igt_momentum(0.1, tail_fraction=0.5)
    with pytest.raises(TypeError, match=r"clusters must be a discover.Clusters, got int; try Clusters.uniform\(n\)"):
        discover.discover(0.1, 3)


@pytest.mark.parametrize(
    ("grads", "ids", "sizes", "message"),
    [
        ({"w": jnp.ones((4, 2))}, IDS, None, r"parameter of shape \(4, 2\) needs a gradient of shape \(G, ...\)"),
        ({"w": jnp.ones(())}, IDS, None, "leading group axis .* got a scalar leaf"),
        (GRADS, jnp.zeros(4, jnp.int32), None, r"cluster_ids .* shape \(5,\), got shape \(4,\)"),
        (GRADS, jnp.zeros(5), None, "cluster_ids must be integers, got dtype float"),
        (GRADS, None, None, "cluster_ids is missing"),
        (GRADS, IDS, jnp.ones(4), r"group_sizes .* shape \(5,\), got shape \(4,\)"),
    ],
)
def test_gradients_ids_and_sizes_that_do_not_fit(grads, ids, sizes, message):
    for tx in (discover.discover(0.1, CLUSTERS), discover.paper_discover(0.1, CLUSTERS, alpha=0.1)):
        with pytest.raises((ValueError, TypeError), match=message) as error:
            tx.update(grads, tx.init(PARAMS), PARAMS, cluster_ids=ids, group_sizes=sizes)
        assert "\n" not in str(error.value)


def test_plain_optimizers_need_the_group_axis_too():
    tx = discover.momentum(0.1)
    with pytest.raises(ValueError, match="leading group axis"):
        tx.update({"w": jnp.ones((4, 2))}, tx.init(PARAMS), PARAMS)


def test_parameters_are_asked_for_where_they_are_needed():
    for tx in (discover.sgd(0.1, l2=0.1), discover.igt_momentum(0.1)):
        with pytest.raises(ValueError, match="needs the parameters"):
            tx.update(GRADS, tx.init(PARAMS), cluster_ids=IDS)


def test_two_transports_in_one_state_are_ambiguous():
    inner = discover.igt(discover.igt_momentum(0.1))
    with pytest.raises(ValueError, match="holds 2 IGT states"):
        discover.igt_eval_params((inner.init(PARAMS), inner.init(PARAMS)), PARAMS)


def test_traced_hyperparameters_are_not_inspected():
    jax.jit(lambda beta: discover.discover(0.1, CLUSTERS, beta=beta).init(PARAMS))(0.5)


def test_a_penalty_that_is_a_schedule_is_refused():
    with pytest.raises(TypeError, match=r"l2 must be a number.*weight_decay takes a schedule"):
        discover.momentum(0.1, l2=lambda step: 0.1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"damping_clusters": 2}, "damping_clusters = 2 goes with damping"),
        ({"damping": 0.1, "damping_clusters": 2.5}, "whole number of at least 1, got 2.5"),
        ({"damping": 0.1, "damping_clusters": 0}, "whole number of at least 1, got 0"),
    ],
)
def test_damping_clusters_are_a_number_of_clusters_and_go_with_damping(options, says):
    with pytest.raises(ValueError, match=says):
        discover.discover(0.1, discover.Clusters.uniform(3), **options)


def test_igt_is_put_around_an_optimizer():
    with pytest.raises(TypeError, match=r"^igt is put around an optimizer, got 0.1: discover.igt_momentum takes"):
        discover.igt(0.1)


def test_a_tail_fraction_that_is_no_number_is_named():
    with pytest.raises(TypeError, match="tail_fraction must be a number, got 'x'"):
        discover.igt_momentum(0.1, tail_fraction="x")


def test_a_learning_rate_that_is_text_is_refused_at_construction():
    with pytest.raises(TypeError, match=r"learning_rate must be a number, got '0.1'"):
        discover.discover("0.1", discover.Clusters.uniform(2))


@pytest.mark.parametrize("leaf", [jnp.arange(3), np.arange(3), jnp.array(True), jax.nn.relu, 3])
def test_parameters_that_cannot_be_trained_are_refused_with_their_place(leaf):
    params = {"layer": {"w": jnp.ones(3), "n": leaf}}
    sentence = "parameters must be floating-point arrays, got .* at layer/n: set the others apart"
    with pytest.raises(TypeError, match=sentence):
        discover.discover(0.1, discover.Clusters.uniform(2)).init(params)
    with pytest.raises(TypeError, match=sentence):
        discover.group_value_and_grad(lambda p, x: jnp.sum(x))(params, jnp.ones((2, 3)))


@pytest.mark.parametrize("empty", [{}, {"layer": ()}, None])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_tree_without_parameters_is_refused(name, empty):
    nothing = "there are no {}, got a {} without any array: hand over the tree of floating-point arrays that is trained"
    kind = type(empty).__name__
    tx, mesh = table.make(name), jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
    for one in (tx, shard_by_parameter(tx, mesh)):
        with pytest.raises(ValueError, match=nothing.format("parameters", kind)):
            one.init(empty)
    state = tx.init(PARAMS)
    if empty is None:
        return
    for call in (
        lambda: tx.update(empty, state, PARAMS, cluster_ids=IDS),
        lambda: discover.take_step(tx, empty, state, empty, cluster_ids=IDS),
        lambda: shard_by_parameter(tx, mesh).update(empty, state, empty, cluster_ids=IDS),
    ):
        with pytest.raises(ValueError, match=nothing.format("gradients", kind)):
            call()


def test_a_loss_without_parameters_has_no_gradients():
    with pytest.raises(ValueError, match="there are no parameters, got a dict without any array"):
        discover.group_value_and_grad(lambda p, x: jnp.sum(x))({}, jnp.ones((2, 3)))
