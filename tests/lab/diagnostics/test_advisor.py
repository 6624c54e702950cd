"""The advice follows from the numbers, ranks what helps above what does not, and says so in words."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from discover.lab.diagnostics.advisor import Candidate, advise, expected_gain, recommend
from discover.lab.diagnostics.batches import batch_noise
from discover.lab.diagnostics.variance import Estimate, Interval


def found(inner, between, signal=0.1):
    parts = [Interval(v, 0.9 * v, 1.1 * v) for v in (inner, between, inner + between, signal)]
    return Estimate(*parts)


def candidate(name, inner, between, num_clusters=10):
    return Candidate(name, num_clusters, {"start": found(1.0, 1.0), "warm-up": found(inner, between)})


@given(num_clusters=st.integers(1, 2000), num_groups=st.integers(1, 512))
def test_the_recommendation_is_what_was_best_and_says_how_far_a_visit_moves_a_buffer(num_clusters, num_groups):
    setting = recommend(num_clusters, num_groups)
    assert (setting.beta, setting.nu) == (0.95, 0.95)
    assert setting.visit_rate == pytest.approx(min(1, 0.05 * num_clusters / num_groups), abs=1e-4)


def test_a_recommendation_needs_a_cluster():
    with pytest.raises(ValueError, match="at least 1"):
        recommend(0, 1)


def test_more_variance_between_clusters_is_ranked_higher_and_random_last():
    rows = advise(
        [candidate("random", 5.0, 0.0), candidate("classes", 1.0, 4.0), candidate("pixels", 3.0, 2.0)],
        num_groups=2,
        group_size=16,
        num_parameters=1000,
    )
    assert [row.name for row in rows] == ["classes", "pixels", "random"]
    assert rows[0].verdict == "use"
    assert rows[2].verdict == "leave"
    assert "Momentum is fine" in rows[2].text
    assert rows[0].memory_bytes == 11 * 1000 * 4
    json.dumps([row.to_json() for row in rows])


def test_advice_for_bfloat16_buffers_counts_their_bytes_and_a_float32_mean():
    row = advise([candidate("classes", 1.0, 4.0)], num_groups=2, group_size=16, num_parameters=1000, bytes_per_value=2)[
        0
    ]
    assert row.memory_bytes == (10 * 2 + 4) * 1000


def test_what_lies_between_but_is_small_beside_the_gradient_is_not_called_little_to_remove():
    row = advise([candidate("classes", 1.0, 0.3)], num_groups=8, group_size=16, num_parameters=1000)[0]
    assert row.batch_share > 0.8
    assert row.verdict == "leave"
    assert "Removing that would gain little" in row.text


def test_of_equal_clusterings_the_smaller_one_comes_first():
    rows = advise(
        [candidate("many", 1.0, 4.0, 100), candidate("few", 1.0, 4.0, 5)],
        num_groups=2,
        group_size=16,
        num_parameters=10,
    )
    assert [row.name for row in rows] == ["few", "many"]


def test_the_expected_gain_of_hand_computed_noise():
    """Signal 2, in-cluster noise 8/(2·4) = 1, between 6/2 = 3, own noise of buffers 1 + (1 − 1/4)·0.5/1.5 = 1.25."""
    noise = batch_noise(8.0, 6.0, num_groups=2, group_size=4)
    gain = expected_gain(found(8.0, 6.0, signal=2.0), noise, 0.5, square_sum=0.25)
    assert gain == pytest.approx((1 + (1 + 3) / 2) / (1 + (1.25 + 0.5 * 3) / 2))


def test_the_gain_is_one_where_nothing_is_between_but_for_the_buffers_noise():
    estimate = found(5.0, 0.0, signal=1e-9)
    noise = batch_noise(5.0, 0.0, num_groups=2, group_size=4)
    assert expected_gain(estimate, noise, 0.1) == pytest.approx(1 / (1 + 0.1 / 1.9), rel=1e-3)
    assert expected_gain(estimate, noise, 0.0) == pytest.approx(1.0)
    # Two equal clusters that forget at every visit: 1.5 times the noise, as a simulation finds, not 2.
    assert expected_gain(estimate, noise, 1.0, square_sum=0.5) == pytest.approx(1 / 1.5, rel=1e-3)


@given(inside=st.floats(0.01, 100), between=st.floats(0.01, 100), signal=st.floats(1e-3, 10), groups=st.integers(1, 64))
def test_the_gain_grows_with_the_variance_between_clusters_and_falls_with_the_groups_but_never_reaches_two(
    inside, between, signal, groups
):
    def gain(between, groups):
        noise = batch_noise(inside, between, num_groups=groups, group_size=16)
        return expected_gain(found(inside, between, signal), noise, 0.0)

    assert 1 < gain(between, groups) < gain(2 * between, groups) < 2
    assert gain(between, 1) >= gain(between, groups)


def test_the_groups_hardly_matter_where_nearly_all_noise_is_between():
    estimate = found(100.0, 100.0, signal=0.01)
    gains = [
        expected_gain(estimate, batch_noise(100.0, 100.0, num_groups=groups, group_size=256 // groups), 0.0)
        for groups in (1, 8)
    ]
    assert gains[0] / gains[1] < 1.1


def test_a_candidate_without_an_estimate_is_refused():
    with pytest.raises(ValueError, match="'empty' has no estimate"):
        advise([Candidate("empty", 3, {})], num_groups=1, group_size=1, num_parameters=1)
