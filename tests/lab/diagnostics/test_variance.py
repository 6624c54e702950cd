"""The variance's parts: exact on a sample, unbiased for the population, right for batches as they are drawn."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.diagnostics import batches, variance


def population(seed=0, sizes=(40, 25, 60), dim=6, spread=1.0, apart=2.0):
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(len(sizes)), sizes)
    centres = rng.normal(size=(len(sizes), dim)) * apart
    scale = rng.uniform(0.5, 2.0, size=len(sizes))
    return centres[ids] + rng.normal(size=(len(ids), dim)) * spread * scale[ids, None], ids


@given(
    seed=st.integers(0, 2**30),
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    dim=st.integers(1, 30),
    given_probs=st.booleans(),
)
@settings(max_examples=80)
def test_total_is_in_plus_between_to_1e_10(seed, sizes, dim, given_probs):
    x, ids = population(seed, sizes, dim)
    probs = np.random.default_rng(seed).dirichlet(np.ones(len(sizes))) if given_probs else None
    parts = variance.decompose(x, ids, probs)
    assert abs(parts.total - parts.in_cluster - parts.between_cluster) <= 1e-10 * max(1.0, parts.total)


def test_decompose_agrees_with_plain_variance_of_the_pooled_sample():
    x, ids = population()
    parts = variance.decompose(x, ids)
    assert parts.total == pytest.approx(np.sum(x.var(axis=0)))
    assert parts.mean_square == pytest.approx(np.sum(x.mean(axis=0) ** 2))
    one = variance.decompose(x, np.zeros(len(x), int))
    assert one.between_cluster == pytest.approx(0, abs=1e-12)


def test_gram_matrix_is_all_inner_products_even_for_float32_with_a_large_mean():
    x, _ = population()
    wide = (x + 1000.0).astype(np.float32)
    np.testing.assert_allclose(variance.gram_matrix(wide), wide.astype(float) @ wide.astype(float).T, rtol=1e-12)


def test_estimate_from_every_example_is_exact():
    x, ids = population()
    exact = variance.decompose(x, ids)
    found = variance.estimate(variance.gram_matrix(x), ids, cluster_sizes=np.bincount(ids), bootstrap=20)
    assert found.in_cluster.value == pytest.approx(exact.in_cluster, rel=1e-10)
    assert found.between_cluster.value == pytest.approx(exact.between_cluster, rel=1e-10)
    assert found.total.value == pytest.approx(exact.total, rel=1e-10)
    assert found.mean_square.value == pytest.approx(exact.mean_square, rel=1e-9)
    assert found.between_cluster.low == found.between_cluster.high  # nothing is left to chance
    assert found.between_share == pytest.approx(exact.between_cluster / exact.total)


@pytest.mark.parametrize("replace", [True, False])
def test_estimators_are_unbiased_on_a_finite_data_set(replace):
    x, ids = population(apart=0.5)  # weak clusters: the plug-in value would be visibly wrong
    probs = np.array([0.5, 0.2, 0.3])
    exact = variance.decompose(x, ids, probs)
    rng = np.random.default_rng(1)
    take = np.array([4, 3, 5])
    rows, plug_in = [], []
    for _ in range(3000):
        chosen = np.concatenate([rng.choice(np.flatnonzero(ids == n), take[n], replace=replace) for n in range(3)])
        sizes = None if replace else np.bincount(ids)
        found = variance.estimate(x[chosen] @ x[chosen].T, ids[chosen], probs, cluster_sizes=sizes, bootstrap=0)
        rows.append([found.in_cluster.value, found.between_cluster.value, found.mean_square.value])
        plug_in.append(variance.decompose(x[chosen], ids[chosen], probs).between_cluster)
    mean, error = np.mean(rows, axis=0), np.std(rows, axis=0) / np.sqrt(len(rows))
    truth = np.array([exact.in_cluster, exact.between_cluster, exact.mean_square])
    assert np.all(np.abs(mean - truth) < 4 * error), (mean, truth, error)
    assert abs(np.mean(plug_in) - exact.between_cluster) > 10 * error[1]  # so the correction matters


def test_bootstrap_intervals_cover_the_truth_about_as_often_as_they_say():
    x, ids = population(apart=0.7, sizes=(400, 400, 400))
    exact = variance.decompose(x, ids)
    rng = np.random.default_rng(2)
    hits = np.zeros(2)
    for trial in range(150):
        chosen = np.concatenate([rng.choice(np.flatnonzero(ids == n), 30) for n in range(3)])
        found = variance.estimate(x[chosen] @ x[chosen].T, ids[chosen], bootstrap=100, seed=trial)
        for i, (part, truth) in enumerate(
            [(found.in_cluster, exact.in_cluster), (found.between_cluster, exact.between_cluster)]
        ):
            hits[i] += part.low <= truth <= part.high
    # 95% said: 142.5 of 150 expected, binomial deviation 2.7. Intervals twice too long would nearly always cover
    # all 150, so both ends can fail.
    assert np.all(hits >= 131)
    assert np.all(hits <= 149)


@pytest.mark.parametrize(("num_groups", "group_size"), [(1, 8), (2, 8), (8, 2)])
def test_batches_of_pure_groups_have_the_noise_that_the_formula_says(num_groups, group_size):
    x, ids = population()
    probs = np.array([0.5, 0.2, 0.3])
    rng = np.random.default_rng(3)
    clusters = rng.choice(3, p=probs, size=(6000, num_groups))
    members = [np.flatnonzero(ids == n) for n in range(3)]
    draws = np.stack([m[rng.integers(0, len(m), size=(6000, num_groups, group_size))] for m in members])
    drawn = np.take_along_axis(draws, clusters[None, :, :, None], axis=0)[0].reshape(6000, -1)
    found = batches.measured_batch_noise(x @ x.T, ids, drawn, probs)
    exact = variance.decompose(x, ids, probs)
    wanted = batches.batch_noise(exact.in_cluster, exact.between_cluster, num_groups=num_groups, group_size=group_size)
    half = (found.total.high - found.total.low) / 2  # 95%: about two standard errors
    assert found.total.value == pytest.approx(wanted.total, abs=2 * half)
    assert half < 0.05 * wanted.total
    assert found.between_cluster.value == pytest.approx(wanted.between_cluster, rel=0.06)
    assert found.in_cluster.value == pytest.approx(wanted.in_cluster, rel=0.06)
    assert found.between_share.value == pytest.approx(wanted.between_share, rel=0.06)


def test_shuffled_batches_match_the_formula_for_random_composition():
    x, ids = population()
    rng = np.random.default_rng(4)
    exact = variance.decompose(x, ids)
    drawn = rng.integers(0, len(x), size=(6000, 16))
    found = batches.measured_batch_noise(x @ x.T, ids, drawn)
    wanted = batches.batch_noise(
        exact.in_cluster, exact.between_cluster, num_groups=2, group_size=8, composition="shuffled"
    )
    assert found.between_cluster.value == pytest.approx(exact.between_cluster / 16, rel=0.06)
    assert found.total.value == pytest.approx(wanted.total, abs=found.total.high - found.total.low)


@pytest.mark.parametrize("kind", ["random", "balanced"])
def test_noise_of_composed_batches_is_unbiased_on_a_sample_whatever_composed_them(kind):
    x, ids = population(apart=0.5)
    probs = np.full(3, 1 / 3)
    rng = np.random.default_rng(5)
    if kind == "random":
        drawn = rng.integers(0, 3, size=(500, 2))
    else:  # two different clusters in each batch
        drawn = np.stack([rng.permutation(3)[:2] for _ in range(500)])
    means = np.stack([x[ids == n].mean(axis=0) for n in range(3)])
    shares = np.stack([(drawn == n).mean(axis=1) for n in range(3)], axis=1)
    exact = np.mean(np.sum(((shares - probs) @ means) ** 2, axis=1))
    found = []
    for _ in range(400):
        chosen = np.concatenate([rng.choice(np.flatnonzero(ids == n), 5) for n in range(3)])
        gram = x[chosen] @ x[chosen].T
        part = batches.composed_batch_noise(gram, ids[chosen], drawn, 4, probs, bootstrap=0)
        found.append([part.in_cluster.value, part.between_cluster.value])
    parts = variance.decompose(x, ids, probs)
    mean, error = np.mean(found, axis=0), np.std(found, axis=0) / np.sqrt(len(found))
    assert abs(mean[1] - exact) < 4 * error[1]
    assert abs(mean[0] - parts.in_cluster / 8) < 4 * error[0] + 0.03 * mean[0]  # the 500 batches' shares are not p
    formula = batches.batch_noise(parts.in_cluster, parts.between_cluster, num_groups=2, group_size=4)
    if kind == "random":
        assert exact == pytest.approx(formula.between_cluster, rel=0.15)
    else:
        assert exact < 0.7 * formula.between_cluster  # so composition matters


def test_noise_of_composed_batches_is_exact_where_the_sample_is_everything():
    x, ids = population(apart=0.5)
    sizes = np.bincount(ids)
    drawn = np.array([[0, 1], [0, 2], [1, 2]])
    means = np.stack([x[ids == n].mean(axis=0) for n in range(3)])
    apart = np.array([[0.5, 0.5, 0], [0.5, 0, 0.5], [0, 0.5, 0.5]]) - 1 / 3
    found = batches.composed_batch_noise(x @ x.T, ids, drawn, 4, np.full(3, 1 / 3), cluster_sizes=sizes)
    inside = variance.decompose(x, ids, np.full(3, 1 / 3)).in_cluster / 8
    assert found.between_cluster.value == pytest.approx(np.mean(np.sum((apart @ means) ** 2, axis=1)), rel=1e-9)
    assert found.in_cluster.value == pytest.approx(inside, rel=1e-9)
    assert found.total.low == found.total.high == found.total.value  # nothing is left to chance


def test_a_momentum_over_clusters_in_turn_holds_them_all_and_over_independent_ones_keeps_their_noise():
    x, ids = population(apart=0.5)
    sizes, even, memory = np.bincount(ids), np.full(3, 1 / 3), 0.8
    turns, random = np.arange(600)[:, None] % 3, np.random.default_rng(1).integers(0, 3, (20_000, 1))

    def between(drawn, memory):
        options = {"cluster_sizes": sizes, "bootstrap": 0, "memory": memory}
        return batches.composed_batch_noise(x @ x.T, ids, drawn, 4, even, **options).between_cluster.value

    means = np.stack([x[ids == n].mean(axis=0) for n in range(3)])
    weights = (1 - memory) * memory ** np.arange(3) / (1 - memory**3)  # of the last cluster, the one before, the third
    shares = np.stack([np.roll(weights, turn) for turn in range(3)]) - 1 / 3
    exact = np.mean(np.sum((shares @ means) ** 2, axis=1)) * (1 + memory) / (1 - memory)
    assert between(turns, memory) == pytest.approx(exact, rel=0.01)  # which begins with zeros
    assert between(turns, memory) < 0.2 * between(turns, 0.0)
    assert between(random, memory) == pytest.approx(between(random, 0.0), rel=0.1)


def test_padding_of_a_batch_does_not_count():
    x, ids = population()
    drawn = np.array([[0, 50, 100, -1], [3, 44, -1, -1]])
    padded = batches.measured_batch_noise(x @ x.T, ids, drawn)
    mean = x.mean(axis=0)
    direct = [np.sum((x[[0, 50, 100]].mean(0) - mean) ** 2), np.sum((x[[3, 44]].mean(0) - mean) ** 2)]
    assert padded.total.value == pytest.approx(np.mean(direct))


def sampled(x, ids, rng, each=30):
    chosen = np.concatenate([rng.choice(np.flatnonzero(ids == n), each) for n in range(3)])
    return x[chosen] @ x[chosen].T, ids[chosen]


@pytest.mark.parametrize("how", ["random", "shuffled", "balanced"])
def test_intervals_of_batch_noise_cover_the_truth_about_as_often_as_they_say(how):
    x, ids = population(apart=0.7, sizes=(400, 400, 400))
    rng = np.random.default_rng(7)
    exact = variance.decompose(x, ids)
    if how == "balanced":
        drawn = np.stack([rng.permutation(3)[:2] for _ in range(300)])
        means = np.stack([x[ids == n].mean(axis=0) for n in range(3)])
        apart = np.stack([(drawn == n).mean(axis=1) for n in range(3)], axis=1) - 1 / 3
        truth = batches.BatchNoise(exact.in_cluster / 8, np.mean(np.sum((apart @ means) ** 2, axis=1)))
    else:
        truth = batches.batch_noise(
            exact.in_cluster, exact.between_cluster, num_groups=2, group_size=4, composition=how
        )
    hits = np.zeros(4)
    for trial in range(150):
        gram, own = sampled(x, ids, rng)
        if how == "balanced":
            found = batches.composed_batch_noise(gram, own, drawn, 4, bootstrap=100, seed=trial)
        else:
            estimate = variance.estimate(gram, own, bootstrap=100, seed=trial)
            found = batches.estimated_batch_noise(estimate, num_groups=2, group_size=4, composition=how)
        for i, part in enumerate(("in_cluster", "between_cluster", "total", "between_share")):
            interval = getattr(found, part)
            hits[i] += interval.low <= getattr(truth, part) <= interval.high
    assert np.all(hits >= 131), hits  # as for the variances above
    assert np.all(hits <= 149), hits


def test_interval_of_measured_batches_shrinks_with_their_number_and_needs_more_than_one_answer():
    x, ids = population()
    rng = np.random.default_rng(8)
    widths = []
    for number in (200, 3200):
        total = batches.measured_batch_noise(x @ x.T, ids, rng.integers(0, len(x), (number, 8))).total
        assert total.low < total.value < total.high
        widths.append(total.high - total.low)
    assert widths[1] == pytest.approx(widths[0] / 4, rel=0.4)
    plain = batches.measured_batch_noise(x @ x.T, ids, rng.integers(0, len(x), (50, 8)), bootstrap=0).total
    assert plain.low == plain.value == plain.high


def test_composition_factor_squares_to_the_second_moment_of_the_shares():
    rng = np.random.default_rng(9)
    probs = np.array([0.5, 0.3, 0.2])
    drawn = rng.choice(3, p=probs, size=(40_000, 4))
    factor = batches.composition_factor(drawn, probs)
    np.testing.assert_allclose(factor.T @ factor, (np.diag(probs) - np.outer(probs, probs)) / 4, atol=2e-3)
    always = batches.composition_factor(np.array([[0, 1]]), probs)
    assert always.shape == (1, 3)
    np.testing.assert_allclose(always.T @ always, np.outer([0, 0.2, -0.2], [0, 0.2, -0.2]), atol=1e-12)
    np.testing.assert_allclose(batches.composition_factor(np.array([[0, 1]]), [0.5, 0.5]), 0, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x, ids: variance.decompose(x[0], ids), "gradients must be"),
        (lambda x, ids: variance.decompose(x, ids[:-1]), "one entry per example"),
        (lambda x, ids: variance.decompose(x, ids, [0.5, 0.5]), "cluster_ids must lie in 0..1"),
        (lambda x, ids: variance.decompose(x, ids, [0.5, 0.5, 0.5]), "sums to 1"),
        (lambda x, ids: variance.decompose(x, ids, [0.4, 0.2, 0.2, 0.2]), "cluster 3 has 0 examples"),
        (lambda x, ids: variance.estimate(x, ids), "gram must be square"),
        (lambda x, ids: variance.estimate(x[:1] @ x[:1].T, [0]), "cluster 0 has 1 example"),
        (lambda x, ids: variance.estimate(x @ x.T, ids, cluster_sizes=[1, 1, 1]), "cluster_sizes"),
        (lambda x, ids: batches.batch_noise(1, 1, num_groups=0, group_size=1), "at least 1"),
        (lambda x, ids: batches.batch_noise(1, 1, num_groups=1, group_size=1, composition="x"), "composition"),
        (lambda x, ids: batches.measured_batch_noise(x @ x.T, ids, [[9999]]), "entries below"),
        (lambda x, ids: batches.composed_batch_noise(x @ x.T, ids, [[3]], 1), "entries below 3"),
        (lambda x, ids: batches.composed_batch_noise(x @ x.T, ids, [[0]], 1, memory=1.0), "memory must be in"),
    ],
)
def test_wrong_input_is_refused_with_the_value(call, message):
    x, ids = population()
    with pytest.raises(ValueError, match=message):
        call(x, ids)
