"""`discover bench`: every candidate is timed in turns, and the table says what it means."""

import pytest

from discover.experiments.bench import BASELINE, HAND_WRITTEN, bench
from discover.experiments.config import ConfigError
from discover.experiments.presets import get_preset
from discover.report.bench import write_bench_figure


@pytest.fixture(scope="module")
def result():
    preset = get_preset("digits")
    said = []
    table = bench(
        preset.config_for, ["igt", "discover"], groups=[1, 4], clusters=[5], repeats=2, seconds=0.01, say=said.append
    )
    return table, said


def test_every_optimizer_and_setting_has_a_row(result):
    table, _ = result
    rows = [(row["optimizer"], row["groups"], row["clusters"]) for row in table["rows"]]
    assert rows == [(BASELINE, 1, 5), ("igt", 1, 5), (HAND_WRITTEN, 1, 1), ("discover", 1, 5), ("discover", 4, 5)]


def test_ratios_are_taken_against_momentum_within_a_repeat(result):
    table, _ = result
    assert table["rows"][0]["ratio"] == 1
    for row in table["rows"]:
        assert row["ratio_lowest"] <= row["ratio"] <= row["ratio_highest"]
        assert row["slowest"] <= row["steps_per_second"] <= row["fastest"]


def test_the_state_grows_with_the_clusters_and_the_floor_with_the_groups(result):
    table, _ = result
    state = {row["optimizer"]: row["state_bytes"] for row in table["rows"]}
    four_bytes = 4 * table["parameters"]
    assert state["momentum"] == pytest.approx(four_bytes, rel=0.01)
    assert state["discover"] == pytest.approx((5 + 1) * four_bytes, rel=0.01)
    floors = [row["floor_bytes"] for row in table["updates"]]
    assert floors[0] == 5 * four_bytes  # gradient, momentum in and out, parameters in and out
    assert floors[1] == 7 * four_bytes  # and ḡ in and out
    assert floors[1] < floors[2] <= (3 * 4 + 4) * four_bytes


def test_what_is_being_done_is_said_with_a_first_look(result):
    assert any("discover, 4 groups, 5 clusters" in text and "ms a step" in text for text in result[1])


def test_groups_must_divide_the_batch():
    with pytest.raises(ConfigError, match="groups must divide the batch of 32 examples, got 5"):
        bench(get_preset("digits").config_for, ["discover"], groups=[5])


def test_the_figure_is_drawn(result, tmp_path):
    paths = write_bench_figure(result[0], tmp_path)
    assert [path.name for path in paths] == ["bench.png", "bench.svg"]
    assert all(path.stat().st_size > 5_000 for path in paths)
