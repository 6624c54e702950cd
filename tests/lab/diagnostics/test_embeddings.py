"""Gradient rows are gradients, projections keep inner products, and a stream is clustered as a whole would be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.diagnostics.embeddings import StreamingKMeans, cluster_stream
from discover.lab.diagnostics.gradients import GradientRows, last_layer, projection

PARAMS = {"layers": [{"kernel": jnp.ones((4, 6)) * 0.3}], "head": {"kernel": jnp.ones((6, 3)) * 0.2}}


def loss(params, batch):
    hidden = jnp.tanh(batch["x"] @ params["layers"][0]["kernel"])
    return jnp.mean(jnp.sum((hidden @ params["head"]["kernel"] - batch["y"]) ** 2, axis=-1))


def batch(size, seed=0):
    rng = np.random.default_rng(seed)
    return {"x": rng.normal(size=(size, 4)).astype(np.float32), "y": rng.normal(size=(size, 3)).astype(np.float32)}


@pytest.mark.parametrize("size", [1, 7, 8, 17])
def test_rows_are_each_examples_gradient_whatever_the_chunk(size):
    data = batch(size)
    rows = GradientRows(loss, PARAMS, chunk=8)(data)
    assert rows.shape == (size, 42)
    for i in (0, size - 1):
        one = jax.grad(loss)(PARAMS, jax.tree.map(lambda a, i=i: a[i : i + 1], data))
        flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(one)])
        np.testing.assert_allclose(rows[i], flat, rtol=1e-4, atol=1e-6)


def test_mean_of_the_rows_is_the_batch_gradient_also_at_other_parameters():
    data = batch(20)
    rows = GradientRows(loss, PARAMS, chunk=8)
    for params in (jax.tree.map(lambda a: a + 0.1, PARAMS), PARAMS):
        whole = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.grad(loss)(params, data))])
        np.testing.assert_allclose(rows.at(params)(data).mean(axis=0), whole, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(rows(data).mean(axis=0), whole, rtol=1e-4, atol=1e-6)  # itself where it was


def test_last_layer_selects_the_head():
    rows = GradientRows(loss, PARAMS, select=last_layer, chunk=4)
    assert rows.features == 18
    full = GradientRows(loss, PARAMS, chunk=4)(batch(4))
    np.testing.assert_allclose(rows(batch(4)), full[:, :18], rtol=1e-5)


def testprojection_keeps_inner_products_on_average_over_its_seed():
    data = batch(3)
    full = GradientRows(loss, PARAMS, chunk=3)(data)
    wanted = full @ full.T
    projected = [np.asarray(projection(42, 10, seed)(full)) for seed in range(300)]
    found = [rows @ rows.T for rows in projected]
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert np.all(np.abs(np.mean(found, axis=0) - wanted) < 5 * error + 1e-6)
    rows = GradientRows(loss, PARAMS, features=10, chunk=3, seed=7)(data)
    np.testing.assert_allclose(rows, projected[7], rtol=1e-4, atol=1e-5)


def test_gradient_rows_refuse_what_cannot_be():
    with pytest.raises(ValueError, match="no parameter is selected; there are head/kernel"):
        GradientRows(loss, PARAMS, select=lambda path: False)
    with pytest.raises(ValueError, match="at least 1"):
        GradientRows(loss, PARAMS, features=0)


def blobs(seed=0, num=3, each=60):
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.repeat(np.arange(num), each))
    return (10 * rng.normal(size=(num, 5))[ids] + rng.normal(size=(len(ids), 5))).astype(np.float32), ids


@given(cuts=st.lists(st.integers(1, 179), max_size=6, unique=True), seed=st.integers(0, 3))
@settings(max_examples=15)
def test_stream_finds_well_separated_clusters_however_it_is_cut(cuts, seed):
    points, truth = blobs(seed)
    found = cluster_stream(lambda: np.split(points, sorted(cuts)), 3, seed=seed)
    assert len(np.unique(np.stack([found, truth], axis=1), axis=0)) == 3  # the same partition, renamed


def test_a_long_stream_is_learnt_piece_by_piece():
    points, truth = blobs(each=800)
    model = StreamingKMeans(3)
    for piece in np.array_split(points, 40):
        model.partial_fit(piece)
    found = model.assign(points)
    assert len(np.unique(np.stack([found, truth], axis=1), axis=0)) == 3


def test_clusters_that_come_out_empty_are_dropped():
    points = np.repeat(np.eye(3, dtype=np.float32), 5, axis=0)
    found = cluster_stream(lambda: [points], 8)
    assert set(found) == {0, 1, 2}


def test_streaming_kmeans_refuses_what_cannot_be():
    with pytest.raises(ValueError, match="num_clusters"):
        StreamingKMeans(0)
    with pytest.raises(ValueError, match="finite"):
        StreamingKMeans(2).partial_fit(np.full((3, 2), np.nan, np.float32))
    with pytest.raises(ValueError, match="clusters need as many rows"):
        cluster_stream(lambda: [np.zeros((2, 2), np.float32)], 5)
