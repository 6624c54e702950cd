"""`discover reproduce` as it is typed: the list, misuse in one line, a whole rehearsal of every result."""

from __future__ import annotations

import json

import pytest

from discover.lab.experiments.reproduce import evidence, results
from discover.lab.experiments.reproduce.evidence import EVIDENCE
from discover.lab.experiments.reproduce.results import RESULTS, get_result
from tests.lab.experiments.reproduce.test_reproduce import TINY, first_panel


def command(*words, expect=0):
    from discover.lab.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *words])
    assert ended.value.code == expect


def test_the_list_names_every_result_and_what_it_trains(capsys):
    command("--list", "--json", "-")
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == [*RESULTS, *EVIDENCE]
    assert all(part["trainings"] > 0 for row in rows for part in row["panels"])


def test_what_needs_the_repository_is_listed_with_the_reason_where_it_is_not_there(capsys, monkeypatch):
    monkeypatch.setattr(evidence, "find_spec", lambda name: None)
    command("--list", "--json", "-")
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["results-h"]["panels"]
    for name in ("results-i", *EVIDENCE):
        assert rows[name]["panels"] is None
        command(name, expect=2)
        error = capsys.readouterr().err
        assert f"{name} needs a checkout of the repository" in error
        assert error.count("\n") == 1


def test_the_command_trains_draws_and_stops_in_time(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(results, "get_result", lambda *a, **b: first_panel(get_result(*a, **b)))
    words = ["results-e", "--scale", "digits", "--out", str(tmp_path), "--seeds", "1"]
    words += [part for text in TINY for part in ("--set", text)]
    command(*words, "--minutes", "0.0000001")
    assert "the time is up with 4 rows of results-e to go" in capsys.readouterr().err
    command(*words)
    assert "Discover, beta=0.95 nu=0.95" in capsys.readouterr().out
    figure = tmp_path / "results-e" / "nu-beta" / "figures" / "nu-beta.png"
    drawn = figure.read_bytes()
    figure.unlink()
    command("results-e", "--scale", "digits", "--out", str(tmp_path), "--redraw")
    assert figure.read_bytes() == drawn


@pytest.mark.slow
@pytest.mark.parametrize("name", [*RESULTS, *EVIDENCE])
def test_every_result_runs_end_to_end_at_the_scale_of_a_rehearsal(name, tmp_path):
    before = ("results-g",) if name == "gains" else ()  # which are of what is trained
    command(*before, name, "--scale", "digits", "--out", str(tmp_path))
    assert list(tmp_path.glob("**/*.png"))
    for record in tmp_path.glob("results-*/*/comparison.json"):
        assert json.loads(record.read_text())["status"] == "finished"


def test_gains_without_a_result_say_what_to_train_first(tmp_path, capsys):
    command("gains", "--scale", "digits", "--out", str(tmp_path), expect=2)
    assert "run `discover reproduce results-d`, for instance, first" in capsys.readouterr().err
