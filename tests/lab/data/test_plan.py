"""The batch plan: purity, passes without replacement, composition, random access, hosts, label noise."""

import hashlib
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.data import BatchPlan, Clustering, DataError, LabelNoise
from tests.lab.data import strategies

compositions = st.sampled_from(["random", "balanced", "shuffled"])


def make_plan(cluster_sizes, groups, group_size, composition="random", seed=0, noise=None):
    clustering = strategies.partition(cluster_sizes, seed % 1000)
    labels = clustering.assignments % 7
    return BatchPlan(
        labels, clustering, groups=groups, group_size=group_size, composition=composition, seed=seed, noise=noise
    )


plans = st.builds(make_plan, strategies.sizes, strategies.groups, strategies.group_size, compositions, strategies.seed)


def same(left, right):
    return all(np.array_equal(a, b) for a, b in zip(left, right))


@given(plan=plans, start=st.integers(0, 10**7))
@settings(max_examples=60)
def test_every_group_is_pure_and_well_formed(plan, start):
    batch = plan.batches(start, 3)
    assert batch.indices.shape == (3, plan.groups, plan.group_size) == batch.labels.shape
    assert batch.cluster_ids.shape == (3, plan.groups) == batch.group_sizes.shape
    assert all(values.dtype == np.int32 for values in batch)
    assert np.all(batch.group_sizes == plan.group_size)
    assert np.all(plan.clustering.assignments[batch.indices] == batch.cluster_ids[..., None])
    assert np.array_equal(batch.labels, plan.labels[batch.indices])


@given(
    cluster_sizes=strategies.sizes,
    groups=strategies.groups,
    group_size=strategies.group_size,
    composition=compositions,
    seed=strategies.seed,
)
@settings(max_examples=60)
def test_every_example_appears_exactly_once_in_each_pass_of_its_cluster(
    cluster_sizes, groups, group_size, composition, seed
):
    plan = make_plan(cluster_sizes, groups, group_size, composition, seed)
    batch = plan.batches(0, 2 + 2 * sum(cluster_sizes) // plan.batch_size)
    ids = np.repeat(batch.cluster_ids.reshape(-1), group_size)
    for n in range(plan.num_clusters):
        members = plan.clustering.members(n)
        stream = batch.indices.reshape(-1)[ids == n]
        whole = len(stream) // len(members)
        passes = stream[: whole * len(members)].reshape(whole, len(members))
        assert np.array_equal(np.sort(passes, axis=1), np.broadcast_to(members, passes.shape))
        rest = stream[whole * len(members) :]
        assert len(np.unique(rest)) == len(rest)


def test_passes_differ_from_each_other_and_between_seeds():
    plan = make_plan([500], 1, 500)
    first, second = plan.batch(0).indices[0], plan.batch(1).indices[0]
    other = make_plan([500], 1, 500, seed=1000).batch(0).indices[0]
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_the_order_within_a_pass_is_uniform():
    plan = make_plan([3], 1, 3)
    orders = plan.batches(0, 6000).indices.reshape(-1, 3)
    _, counts = np.unique(orders, axis=0, return_counts=True)
    assert len(counts) == 6
    assert np.sum((counts - 1000) ** 2 / 1000) < 35.9  # χ² of 5 degrees of freedom, its 1e-6 quantile


@given(plan=plans, start=st.integers(0, 10**9), count=st.integers(1, 20), data=st.data())
@settings(max_examples=25)
def test_a_batch_is_a_function_of_its_step_alone(plan, start, count, data):
    stacked = plan.batches(start, count)
    fresh = plan.for_host(0, 1)  # as in a resumed run: nothing remembered
    step = data.draw(st.integers(start, start + count - 1))
    assert same(fresh.batch(step), [values[step - start] for values in stacked])
    backwards = [fresh.batch(s) for s in reversed(range(start, start + count))][::-1]
    assert same([np.stack(values) for values in zip(*backwards)], stacked)


@given(
    cluster_sizes=strategies.sizes,
    share=st.integers(1, 4),
    hosts=st.integers(1, 5),
    composition=compositions,
    noise=st.sampled_from([None, LabelNoise(0.5, 7)]),
    step=st.integers(0, 10**8),
)
@settings(max_examples=20)
def test_hosts_draw_disjoint_parts_that_join_to_the_whole(cluster_sizes, share, hosts, composition, noise, step):
    plan = make_plan(cluster_sizes, share * hosts, 6, composition, 5, noise)
    parts = [plan.for_host(index, hosts).batch(step) for index in range(hosts)]
    assert all(part.indices.shape == (share, 6) for part in parts)
    assert same([np.concatenate(values) for values in zip(*parts)], plan.batch(step))


def test_shuffled_batches_have_one_cluster_so_that_discover_is_momentum():
    plan = make_plan([5, 10, 15], 3, 5, "shuffled")
    assert (plan.num_clusters, plan.probs) == (1, (1.0,))
    batch = plan.batches(0, 2)
    assert np.all(batch.cluster_ids == 0)
    assert sorted(batch.indices.reshape(-1).tolist()) == list(range(30))


def test_given_clusters_stay_with_their_group():
    clustering = strategies.partition([20, 30, 10], 0)
    plan = BatchPlan(
        clustering.assignments, clustering, groups=4, group_size=3, composition="given", given=[2, 0, 1, 0]
    )
    batch = plan.batches(10, 5)
    assert np.all(batch.cluster_ids == np.array([2, 0, 1, 0]))
    assert plan.probs == (0.5, 0.25, 0.25)
    assert np.all(clustering.assignments[batch.indices] == batch.cluster_ids[..., None])


# -- augmentations as clusters, and label noise -----------------------------------------------------------------------


def test_each_augmentation_passes_over_every_example():
    labels = np.arange(30) % 3
    plan = BatchPlan(labels, Clustering.augmentations(30), groups=4, group_size=5, seed=3)
    batch = plan.batches(0, 120)
    for n in range(3):
        stream = batch.indices[batch.cluster_ids == n].reshape(-1)
        passes = len(stream) // 30
        assert passes > 10
        assert all(sorted(p) == list(range(30)) for p in stream[: passes * 30].reshape(passes, 30).tolist())


def test_noise_under_augmentations_is_drawn_anew_for_each_of_them():
    labels = np.zeros(2000, dtype=int)
    noise = LabelNoise(0.5, 2)
    plan = BatchPlan(
        labels, Clustering.augmentations(2000), groups=3, group_size=2000, composition="given", given=[0, 1, 2],
        noise=noise,
    )  # fmt: skip
    batch = plan.batch(0)
    seen = np.empty((3, 2000), dtype=int)
    np.put_along_axis(seen, batch.indices, batch.labels, axis=1)
    agreement = [np.mean(seen[a] == seen[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert all(0.44 < share < 0.56 for share in agreement)


@given(
    counts=st.lists(st.integers(1, 80), min_size=2, max_size=5),
    probability=st.floats(0.05, 1.0),
    groups=st.integers(1, 4),
    group_size=st.integers(1, 20),
    seed=strategies.seed,
)
@settings(max_examples=40)
def test_observed_label_clusters_see_every_example_once_per_pass(counts, probability, groups, group_size, seed):
    labels = np.repeat(np.arange(len(counts)), counts)
    noise = LabelNoise(probability, len(counts), seed)
    if len(counts) == 2 and probability == 1.0:
        noise = LabelNoise(0.9, 2, seed)
    plan = BatchPlan(labels, Clustering.observed_labels(labels, noise), groups=groups, group_size=group_size, seed=seed)
    steps = 2 + 4 * len(labels) // plan.batch_size
    batch = plan.batches(0, steps)
    # A group's observed labels are its cluster's: this is what makes the clusters those of observed labels.
    assert np.all(batch.labels == batch.cluster_ids[..., None])
    ids = np.repeat(batch.cluster_ids.reshape(-1), group_size)
    for n in range(len(counts)):
        stream = batch.indices.reshape(-1)[ids == n].tolist()
        # By the definition: pass k of cluster n holds the examples whose k-th observed label is n.
        k = 0
        while stream:
            observed = noise.observe(labels, np.arange(len(labels)), k)
            expected = set(np.flatnonzero(observed == n).tolist())
            piece = stream[: len(expected)]
            assert len(set(piece)) == len(piece)
            assert set(piece) <= expected
            if len(piece) == len(expected):
                assert set(piece) == expected
            stream, k = stream[len(expected) :], k + 1


def test_observed_label_clusters_resume_at_any_step():
    labels = np.repeat(np.arange(5), 200)
    clustering = Clustering.observed_labels(labels, LabelNoise(0.8, 5, 1))
    plan = BatchPlan(labels, clustering, groups=4, group_size=16, seed=9)
    late = plan.batch(5000)
    again = plan.for_host(0, 1)
    assert same(again.batch(5000), late)
    assert same(again.batch(3), plan.batch(3))


def test_noisy_labels_agree_with_the_noise_at_each_pass():
    labels = np.arange(40) % 4
    noise = LabelNoise(0.7, 4, 3)
    plan = BatchPlan(labels, Clustering.single(40), groups=1, group_size=40, noise=noise)
    for k in range(5):
        batch = plan.batch(k)
        assert np.array_equal(batch.labels[0], noise.observe(labels[batch.indices[0]], batch.indices[0], k))


NOISE = LabelNoise(0.4, 7, 5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "9d281dce3a6cc710"),
        ({"composition": "balanced"}, "b23749e7145f4000"),
        ({"composition": "shuffled"}, "966ed5b21c93895d"),
        ({"composition": "given", "given": [3, 0, 2, 1]}, "12f3f7be234e09ab"),
        ({"noise": NOISE}, "2b42916ae0a13db3"),
        ({"clustering": Clustering.augmentations(544), "noise": NOISE}, "21ee5dfb0e7575f6"),
    ],
)
def test_batches_are_fixed_forever(options, expected):
    # A change here, ours or NumPy's, would break the resumption of every run that was ever started.
    assert digest(options, (0, 1, 1000, 12_345_678)) == expected


def test_batches_of_observed_labels_are_fixed_forever():
    labels = strategies.partition([3, 500, 40, 1], 11).assignments % 7
    assert digest({"clustering": Clustering.observed_labels(labels, NOISE)}, (0, 1, 1000)) == "c99e45667c49425d"


def digest(options, steps):
    clustering = strategies.partition([3, 500, 40, 1], 11)
    labels = clustering.assignments % 7
    plan = BatchPlan(labels, **({"clustering": clustering, "groups": 4, "group_size": 8, "seed": 11} | options))
    arrays = [values.tobytes() for step in steps for values in plan.batch(step)]
    return hashlib.sha256(b"".join(arrays)).hexdigest()[:16]


# -- the rest ---------------------------------------------------------------------------------------------------------


def test_threads_get_the_batches_that_one_thread_gets():
    plan = make_plan([50, 200, 3], 4, 8)
    expected = [plan.batch(step) for step in range(300)]
    shared, wrong = make_plan([50, 200, 3], 4, 8), []

    def draw(offset):
        for step in range(offset, 300, 4):
            if not same(shared.batch(step * 997 % 300), expected[step * 997 % 300]):
                wrong.append(step)

    threads = [threading.Thread(target=draw, args=(offset,)) for offset in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_batches_cannot_be_written_to():
    batch = make_plan([50], 2, 4).batch(0)
    with pytest.raises(ValueError, match="read-only"):
        batch.indices[0, 0] = 3


LABELS = np.array([0, 0, 1, 1])
CLUSTERING = Clustering.classes(LABELS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"groups": 0}, "groups must be an integer of at least 1, got 0"),
        ({"group_size": 0}, "group_size must be an integer of at least 1, got 0"),
        ({"groups": None}, "groups must be an integer of at least 1, got None"),
        ({"group_size": None}, "group_size must be an integer of at least 1, got None"),
        ({"group_size": "four"}, "group_size must be an integer of at least 1, got 'four'"),
        ({"groups": float("inf")}, "groups must be an integer of at least 1, got inf"),
        ({"labels": LABELS.astype(float)}, "labels must be integers, got float64"),
        ({"labels": np.array(list("abcd"))}, "labels must be integers, got <U1"),
        ({"labels": LABELS - 1}, "labels must lie in 0…2147483647, got -1…0"),
        ({"labels": LABELS + 2**31}, "labels must lie in 0…2147483647, got 2147483648…"),
        ({"seed": -1}, "seed must be an integer of at least 0, got -1"),
        ({"composition": "ballanced"}, "did you mean 'balanced'"),
        ({"labels": np.zeros(3, int)}, "the clustering is for 4 examples"),
        ({"given": [0, 1]}, "given=… is for composition 'given'"),
        ({"composition": "given"}, "needs given=…, 2 cluster ids"),
        ({"composition": "given", "given": [0]}, r"shape \[2\]"),
        ({"composition": "given", "given": [0, 2]}, "must lie in 0…1, got 0…2"),
        ({"composition": "given", "given": [0, 0]}, "none of cluster 1"),
        ({"noise": LabelNoise(0.0, 1)}, "below the noise's 1 classes"),
        ({"clustering": Clustering.augmentations(4), "composition": "shuffled"}, "no augmentation to apply"),
        (
            {"clustering": Clustering.observed_labels(LABELS, LabelNoise(0.5, 2)), "noise": LabelNoise(0.4, 2)},
            "the clusters are labels observed under",
        ),
        (
            {"clustering": Clustering.observed_labels(1 - LABELS, LabelNoise(0.5, 2))},
            "must be of these labels",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, message):
    arguments = {"labels": LABELS, "clustering": CLUSTERING, "groups": 2, "group_size": 2} | arguments
    with pytest.raises(ValueError, match=message):
        BatchPlan(**arguments)


def test_host_arguments_that_do_not_fit_are_named():
    plan = make_plan([10], 4, 2)
    with pytest.raises(DataError, match="process_count must divide the 4 groups"):
        plan.for_host(0, 3)
    with pytest.raises(DataError, match=r"process_index must lie in 0…1, got 2"):
        plan.for_host(2, 2)
    with pytest.raises(DataError, match="already"):
        plan.for_host(0, 2).for_host(0, 2)


@pytest.mark.parametrize("step", [-1, 0.5])
def test_steps_must_be_whole_and_not_negative(step):
    with pytest.raises(DataError, match="step must be an integer of at least 0"):
        make_plan([10], 1, 1).batch(step)
