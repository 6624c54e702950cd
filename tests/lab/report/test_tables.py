"""The table's cells, as the terminal, the page and the documentation show them."""

from __future__ import annotations

import pytest

from discover.lab.report import comparison_table


def row(label: str, mean: float | None, **fields):
    spread = {"mean": mean, "std": 0.004, "values": [mean, mean]}
    return {"label": label, "validation_accuracy": spread, "test_accuracy": spread, **fields}


def test_accuracies_are_percentages_with_their_deviation():
    table = comparison_table([row("momentum", 0.5), row("discover", 0.951)])
    assert table.headers == ("optimizer", "test accuracy")
    assert table.rows == (("Momentum", "50.0 ± 0.4 %"), ("Discover", "95.1 ± 0.4 %"))


def test_a_diverged_run_is_called_so_and_is_never_the_best():
    table = comparison_table([row("momentum", None), row("discover", 0.2), row("adam", 0.1)])
    assert table.rows[0][1] == "diverged"
    assert table.best == 1


def test_the_best_is_chosen_on_validation_never_on_test():
    below, above = ({"mean": mean, "std": 0.0, "values": [mean]} for mean in (0.5, 0.6))
    rows = [row("discover", 0.9, validation_accuracy=below), row("discover_qhm", 0.8, validation_accuracy=above)]
    assert comparison_table(rows).best == 1
    assert comparison_table([{**found, "validation_accuracy": None} for found in rows]).best is None


def test_a_control_is_never_the_best():
    rows = [row("momentum", 0.5), row("discover", 0.6), row("momentum-shuffled", 0.9, control=True)]
    assert comparison_table(rows).best == 1


@pytest.mark.parametrize(
    ("values", "cell"),
    [([100, 200], "150"), ([100, None], "100 (1/2 seeds)"), ([None, None], "not reached")],
)
def test_steps_to_the_target_say_how_many_seeds_got_there(values, cell):
    table = comparison_table([row("discover", 0.9, steps_to_target={"values": values})], target=0.9)
    assert table.headers[-1] == "steps to 90%"
    assert table.rows[0][-1] == cell
