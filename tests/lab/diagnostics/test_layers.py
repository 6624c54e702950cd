"""Layer by layer: the same variances as of the whole gradient, and where they lie."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.diagnostics import layers as module
from discover.lab.diagnostics.gradients import GradientRows
from discover.lab.diagnostics.layers import Layer, layer_variances, ranked
from discover.lab.diagnostics.variance import estimate, gram_matrix

PARAMS = {"a": {"w": jnp.full((3, 4), 0.1), "b": jnp.zeros(4)}, "head": {"w": jnp.full((4, 2), 0.2)}}


def loss(params, batch):
    hidden = jnp.tanh(batch @ params["a"]["w"] + params["a"]["b"])
    return jnp.mean((hidden @ params["head"]["w"]) ** 2)


def examples(number, clusters, seed):
    rng = np.random.default_rng(seed)
    ids = np.arange(number) % clusters
    return (rng.normal(size=(number, 3)) + ids[:, None]).astype(np.float32), ids


@settings(max_examples=8)
@given(st.integers(2, 4), st.integers(0, 100), st.booleans())
def test_each_layer_has_the_variances_of_its_rows_and_pieces_do_not_matter(clusters, seed, finite):
    x, ids = examples(24, clusters, seed)
    probs = np.bincount(ids) / len(ids)
    sizes = np.bincount(ids) if finite else None
    found = layer_variances(
        loss, PARAMS, [(x[:8], ids[:8]), (x[8:16], ids[8:16]), (x[16:], ids[16:])], probs, cluster_sizes=sizes
    )
    assert [(one.name, one.parameters) for one in found] == [("a", 16), ("head", 8)]
    for one in found:
        rows = GradientRows(loss, PARAMS, select=lambda path, one=one: path.startswith(one.name), chunk=24)(x)
        parts = estimate(gram_matrix(rows), ids, probs, cluster_sizes=sizes, bootstrap=0)
        assert one.in_cluster == pytest.approx(parts.in_cluster.value, rel=1e-4, abs=1e-9)
        assert one.between_cluster == pytest.approx(parts.between_cluster.value, rel=1e-3, abs=1e-8)


def test_an_example_that_only_fills_a_piece_does_not_count():
    x, ids = examples(12, 3, 0)
    probs = np.full(3, 1 / 3)
    filled = layer_variances(loss, PARAMS, [(np.concatenate([x, x[:4]]), np.append(ids, [-1] * 4))], probs)
    for one, other in zip(filled, layer_variances(loss, PARAMS, [(x, ids)], probs), strict=True):
        assert one.between_cluster == pytest.approx(other.between_cluster, rel=1e-6)
        assert one.in_cluster == pytest.approx(other.in_cluster, rel=1e-6)


def test_a_large_layer_is_projected_and_keeps_its_variances(monkeypatch):
    def wide(params, batch):
        return jnp.mean((batch @ params["w"]["kernel"]) ** 2)

    params = {"w": {"kernel": jax.random.normal(jax.random.key(0), (3, 400))}}
    x, ids = examples(60, 3, 1)
    probs = np.full(3, 1 / 3)
    (whole,) = layer_variances(wide, params, [(x, ids)], probs)
    monkeypatch.setattr(module, "LARGEST_LAYER", 300)
    (small,) = layer_variances(wide, params, [(x, ids)], probs)
    assert small != whole
    assert small.between_cluster == pytest.approx(whole.between_cluster, rel=0.3)


def test_the_layers_come_first_that_hold_most_of_it_in_the_fewest_parameters():
    layers = [Layer("large", 980, 1.0, 9.0), Layer("small", 10, 1.0, 1.0), Layer("none", 10, 1.0, -0.1)]
    rows = ranked(layers, 1, 8)
    assert [(row["name"], row["place"]) for row in rows] == [("small", 1), ("large", 0), ("none", 2)]
    assert [row["held"] for row in rows] == pytest.approx([0.1, 1.0, 1.0])
    assert [row["buffers"] for row in rows] == pytest.approx([0.01, 0.99, 1.0])
    assert ranked(layers[2:], 1, 8)[0]["held"] == 0


def test_the_share_is_that_of_batches_of_pure_groups():
    assert Layer("a", 1, 8.0, 1.0).between_share(2, 32) == pytest.approx(0.8)
