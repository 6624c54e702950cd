"""Which cluster each slot draws: the laws of the compositions, and random access to them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discover.lab.data.batches.cluster_order import BLOCK, BalancedOrder, GivenOrder, RandomOrder

probs = st.lists(st.one_of(st.floats(1e-4, 1.0), st.just(1.0)), min_size=1, max_size=20).map(
    lambda weights: tuple((np.array(weights) / np.sum(weights)).tolist())
)
seeds = st.integers(0, 2**64)


def naive_visits(ids):
    """For each slot the number of earlier slots of its cluster, by counting."""
    seen, visits = {}, []
    for n in ids.tolist():
        visits.append(seen.get(n, 0))
        seen[n] = visits[-1] + 1
    return visits


@pytest.mark.parametrize("kind", [RandomOrder, BalancedOrder])
@given(probs=probs, seed=seeds, start=st.integers(0, 3 * BLOCK), length=st.integers(1, 300))
@settings(max_examples=25)
def test_any_stretch_equals_what_counting_from_the_start_gives(kind, probs, seed, start, length):
    ids, visits = kind(probs, seed).slots(0, start + length)
    assert visits.tolist() == naive_visits(ids)
    stretch_ids, stretch_visits = kind(probs, seed).slots(start, start + length)
    assert stretch_ids.tolist() == ids[start:].tolist()
    assert stretch_visits.tolist() == visits[start:].tolist()


@pytest.mark.parametrize("kind", [RandomOrder, BalancedOrder])
@pytest.mark.parametrize("block", [0, 5, 2**17 - 1, 2**17, 3 * 2**17 + 11, 2**22])
def test_blocks_join_without_a_gap_however_far_they_are(kind, block):
    probs = (0.5, 0.3, 0.199, 0.001)
    here, after = kind(probs, 7), kind(probs, 7)
    ids, visits = here.slots(block * BLOCK, (block + 1) * BLOCK)
    next_ids, next_visits = after.slots((block + 1) * BLOCK, (block + 2) * BLOCK)
    for n in range(4):
        mine, theirs = visits[ids == n], next_visits[next_ids == n]
        assert np.array_equal(mine, mine[:1] + np.arange(len(mine)))
        if len(mine) and len(theirs):
            assert theirs[0] == mine[-1] + 1


def test_random_draws_follow_the_probabilities_and_are_independent():
    probs = np.array([0.4, 0.35, 0.2, 0.05])
    counts, pairs = np.zeros(4), np.zeros((4, 4))
    for seed in range(10):
        ids, _ = RandomOrder(tuple(probs), seed).slots(0, 4 * BLOCK)
        counts += np.bincount(ids, minlength=4)
        np.add.at(pairs, (ids[:-1], ids[1:]), 1)
    # χ² of the marginal (3 degrees of freedom) and of consecutive pairs against independence (15): the 1e-6 quantiles.
    total = counts.sum()
    assert np.sum((counts - total * probs) ** 2 / (total * probs)) < 30.7
    expected = pairs.sum() * np.outer(probs, probs)
    assert np.sum((pairs - expected) ** 2 / expected) < 57.7


def test_random_draws_in_a_block_vary_as_a_binomial_does():
    probs = (0.25, 0.75)
    schedule = RandomOrder(probs, 3)
    counts = [np.sum(schedule.slots(k * BLOCK, (k + 1) * BLOCK)[0] == 0) for k in range(200)]
    ratio = np.var(counts) / (BLOCK * 0.25 * 0.75)
    assert 0.6 < ratio < 1.5  # a χ² of 199 degrees of freedom over 199: outside with probability below 1e-4


@given(probs=probs, seed=seeds, start=st.integers(0, 2**34))
@settings(max_examples=60)
def test_balanced_counts_stay_within_the_stated_bound_of_their_share(probs, seed, start):
    ids, visits = BalancedOrder(probs, seed).slots(start, start + BLOCK)
    shares = np.array(probs)[ids] * np.arange(start, start + BLOCK)
    # Shares are multiples of 2⁻³⁰, which adds up to start·2⁻³¹ to each of the few shares on a cluster's path.
    slack = (start + BLOCK) * 2.0**-31 * (1 + len(probs))
    assert np.max(np.abs(visits - shares)) <= BalancedOrder.BOUND + slack


def test_balanced_uniform_clusters_take_turns():
    ids, _ = BalancedOrder((0.125,) * 8, 5).slots(0, 80)
    assert all(sorted(turn) == list(range(8)) for turn in ids.reshape(10, 8).tolist())


def test_seeds_change_the_order_of_turns():
    orders = {tuple(BalancedOrder((0.125,) * 8, seed).slots(0, 8)[0].tolist()) for seed in range(5)}
    assert len(orders) > 1


@given(cycle=st.lists(st.integers(0, 5), min_size=1, max_size=12), start=st.integers(0, 100))
@settings(max_examples=50)
def test_given_clusters_repeat_with_the_right_visits(cycle, start):
    ids, visits = GivenOrder(cycle).slots(start, start + 30)
    everything = np.array([cycle[s % len(cycle)] for s in range(start + 30)])
    assert ids.tolist() == everything[start:].tolist()
    assert visits.tolist() == naive_visits(everything)[start:]
