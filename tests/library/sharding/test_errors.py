"""Calls that cannot be are refused in one line."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import discover
from discover.sharding import (
    shard_by_parameter,
    sharded_group_value_and_grad,
)
from tests.library.sharding.sharded import (
    loss,
    make_mesh,
    make_params,
)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2), data_axis="batch"), "no axis 'batch'.*'data'"),
        (
            lambda: shard_by_parameter(discover.sgd(0.1), jax.make_mesh((2,), ("data",))),
            "type Auto, got Explicit",
        ),
        (lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2), exchange="sum"), "'groups', 'mean', got 'sum'"),
        (
            lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2), clusters_per_device=0),
            "at least 1, got 0",
        ),
        (
            lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2)).update(
                jnp.ones((3, 2)), (), jnp.ones(2), cluster_ids=jnp.arange(3)
            ),
            "multiple of the 2 devices.*got 3; pad_groups",
        ),
        (
            lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2)).update(jnp.ones((2, 2)), ()),
            "needs the parameters",
        ),
        (
            lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2), param_specs=P("data")).init(jnp.ones(2)),
            "sharded over 'data', the axis of the batches",
        ),
        (
            lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2), param_specs=P("model")).init(jnp.ones(2)),
            "sharded over 'model'; the mesh has data",
        ),
        (
            lambda: shard_by_parameter(
                discover.sgd(0.1), make_mesh(8, ("data", "model"), (2, 4)), param_specs=P("model")
            ).init(jnp.ones(6)),
            r"dimension 0 of the parameter, \(6,\), does not divide over the 4 devices",
        ),
        (
            lambda: shard_by_parameter(discover.sgd(0.1), make_mesh(2), param_specs=P()).init((jnp.ones(2),) * 2),
            "one PartitionSpec per parameter, got 1 for 2",
        ),
        (
            lambda: sharded_group_value_and_grad(loss, make_mesh(2))(make_params(), jnp.ones((3, 2))),
            "multiple of the 2 devices.*got 3; pad_groups",
        ),
    ],
)
def test_a_call_that_cannot_be_says_what_is_wrong(call, says):
    with pytest.raises(ValueError, match=says):
        call()


def test_an_optimizer_with_clusters_does_not_take_the_mean_over_the_groups():
    tx = shard_by_parameter(discover.discover(0.1, discover.Clusters.uniform(2)), make_mesh(2), exchange="mean")
    params, ids = make_params(), jnp.arange(2)
    grads = jax.tree.map(lambda p: jnp.ones((2, *p.shape)), params)
    with pytest.raises(TypeError, match="cluster_ids is missing"):
        jax.eval_shape(lambda: tx.update(grads, tx.init(params), params, cluster_ids=ids))
