"""`discover bench`: every candidate is timed in turns, and the table says what it means."""

import jax
import pytest

from discover.lab.experiments.bench import table as module
from discover.lab.experiments.bench.candidates import HAND_WRITTEN, Candidate
from discover.lab.experiments.bench.table import _take_turns, bench
from discover.lab.experiments.config.config import ConfigError
from discover.lab.experiments.presets.presets import get_preset
from discover.lab.report.bench import write_bench_figure
from discover.registry import REFERENCE

NO_LAYERS = ["model.depth=none", "model.width=none"]


@pytest.fixture(scope="module")
def result():
    def config_for(name):  # a small network compiles sooner
        return get_preset("digits").config_for(name).override(["model.name=logistic", *NO_LAYERS])

    said = []
    settings = {"groups": [1, 4], "clusters": [5], "repeats": 2, "seconds": 0.01}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "copy_bandwidth", lambda: 1e10)  # takes seconds on a CPU
        table = bench(config_for, ["discover", "discover+nu=0.5"], say=said.append, **settings)
    return table, said


def test_every_optimizer_and_setting_has_a_row(result):
    table, _ = result
    assert table["environment"]["devices"] == ["cpu"] * len(jax.devices())
    rows = [(row["optimizer"], row["variant"], row["groups"], row["clusters"]) for row in table["rows"]]
    ours = [("discover", variant, groups, 5) for groups in (1, 4) for variant in ("", "nu=0.5")]
    assert rows == [(REFERENCE, "", 1, 5), (HAND_WRITTEN, "", 1, 1), *ours]


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


def test_operations_of_a_step_are_those_of_the_matrix_products_and_their_gradients(result):
    table = result[0]
    forward = 2 * 64 * 10  # one layer, whose gradient takes as many again; nothing flows back to the pixels
    assert table["operations_per_step"] == pytest.approx(table["batch"] * 2 * forward, rel=0.1)


@pytest.mark.parametrize(("whole", "total"), [(2, 5), (3, 3)])
def test_ctrl_c_keeps_the_repeats_that_were_whole(whole, total):
    def candidate(interrupts):
        calls = iter(range(100))

        def run():
            if interrupts and next(calls) == whole:
                raise KeyboardInterrupt

        return Candidate("x", "", 1, 1, run, 0.0, 0, None)

    candidates, said = [candidate(False), candidate(True)], []
    assert _take_turns(candidates, total, 1, 1, said.append) == whole
    assert [len(c.seconds) for c in candidates] == [whole, whole]
    assert ("stopped" in said[-1]) == (whole < total)


@pytest.fixture
def without_training(monkeypatch):
    """Candidates that do nothing, on a device that is not measured."""

    def prepare(config, *_):
        return Candidate(config.optimizer.name, "", config.batches.groups, 10, lambda: None, 0.0, 1, None)

    monkeypatch.setattr(module, "prepare_candidate", prepare)
    monkeypatch.setattr(module, "prepare_hand_written", prepare)
    monkeypatch.setattr(module, "copy_bandwidth", lambda: 1e10)


def test_ctrl_c_while_the_updates_are_timed_keeps_the_table_and_those_that_were(monkeypatch, without_training):
    timed, said = [], []

    def update_alone(config, *_):
        if timed:
            raise KeyboardInterrupt
        timed.append(config.optimizer.name)
        return {"optimizer": config.optimizer.name}

    monkeypatch.setattr(module, "time_update", update_alone)
    settings = {"groups": [4], "repeats": 1, "seconds": 0.0001}
    table = bench(get_preset("digits").config_for, ["discover"], say=said.append, **settings)
    assert [row["optimizer"] for row in table["rows"]] == [REFERENCE, REFERENCE, "discover"]
    assert table["updates"] == [{"optimizer": REFERENCE}]
    assert said[-1] == "stopped: 1 of 2 updates were timed alone"


def test_the_update_alone_is_timed_on_demand_only(monkeypatch, without_training):
    monkeypatch.setattr(module, "time_update", lambda *_: pytest.fail("timed"))
    table = bench(get_preset("digits").config_for, ["discover"], repeats=1, seconds=0.0001, update=False)
    assert len(table["rows"]) == 3
    assert not table["updates"]


def test_groups_must_divide_the_batch():
    with pytest.raises(ConfigError, match="groups must divide the batch of 32 examples, got 5"):
        bench(get_preset("digits").config_for, ["discover"], groups=[5])


def test_the_figure_is_drawn(result, tmp_path):
    paths = write_bench_figure(result[0], tmp_path)
    assert [path.name for path in paths] == ["bench.png", "bench.svg"]
    assert all(path.stat().st_size > 5_000 for path in paths)


def test_momentum_alone_can_be_timed_and_drawn(monkeypatch, without_training, tmp_path):
    monkeypatch.setattr(module, "time_update", lambda config, *_: {"optimizer": config.optimizer.name})
    table = bench(get_preset("digits").config_for, [], repeats=1, seconds=0.0001, loop=False)
    assert [row["optimizer"] for row in table["rows"]] == [REFERENCE]
    assert write_bench_figure(table, tmp_path)


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_timed(tmp_path, monkeypatch, capsys):
    from discover.lab.cli import main

    monkeypatch.setattr(module, "bench", lambda *_, **__: pytest.fail("timed"))
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as ended:
        main(["bench", "digits", "--out", str(tmp_path / "file" / "below")])
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"discover: {tmp_path / 'file' / 'below'} cannot be written: Not a directory\n"
