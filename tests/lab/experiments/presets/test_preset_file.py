"""`--config FILE`: a setting of one's own from a file, with everything in it one's own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from discover.lab import records
from discover.lab.cli import main
from discover.lab.experiments.compare.comparison import make_comparison
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.presets.file import read_preset
from discover.lab.experiments.presets.presets import get_preset

EXAMPLE = Path(__file__).parents[4] / "examples" / "own_everything" / "mine.toml"


@pytest.fixture(autouse=True)
def same_import_path(monkeypatch):
    """What a file adds to the import path is gone after its test."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    sys.modules.pop("mine", None)


def write(folder: Path, text: str, name: str = "setting.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_example_compares_an_optimizer_a_model_a_clustering_and_a_preset_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ["--optimizers", "mine:my_optimizer,optax:adamw", "--learning-rates", "0.01", "--no-control"]
    small = ["--seeds", "1", "--set", "training.steps=4", "--set", "training.eval_every=4", "--set", "model.hidden=8"]
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--config", str(EXAMPLE), *names, *small])
    assert not ended.value.code
    folder = tmp_path / "runs" / "compare-mine"  # named after the file
    record = json.loads((folder / "comparison.json").read_text())
    rows = {row["label"]: row for row in record["rows"]}
    assert {label: row["clustered"] for label, row in rows.items()} == {"mine:my_optimizer": True, "optax:adamw": False}
    assert all(row["test_accuracy"]["mean"] is not None for row in rows.values())
    config = Config.from_dict(records.read_json(folder / rows["mine:my_optimizer"]["run"] / "config.json"))
    assert config.optimizer.arguments == {"beta": 0.95}
    assert (config.model.name, config.model.arguments) == ("mine:my_model", {"hidden": 8})  # --set wins
    assert config.clusters.by == "mine:my_clusters"
    assert config.batches.groups == 2  # the preset's
    assert "My optimizer" in (folder / "report.html").read_text()


def test_a_file_wins_over_its_preset_and_says_what_to_compare(tmp_path):
    preset = read_preset(
        write(
            tmp_path,
            """
            preset = "digits"
            compare = ["adam", "momentum"]
            learning_rates = [0.1, 1]
            target_accuracy = 0.5
            [training]
            epochs = 3
            [optimizer]
            beta = 0.8
            [optimizers.adam]
            beta1 = 0.5
            """,
        )
    )
    plan = make_comparison(preset, control=False)
    adam, momentum = (entry.config for entry in plan.entries)
    assert (plan.preset, plan.learning_rates, plan.target_accuracy) == ("setting", (0.1, 1.0), 0.5)
    assert (adam.training.epochs, adam.training.steps) == (3.0, None)
    assert momentum.optimizer.get("beta") == 0.8
    assert adam.optimizer.arguments == {"beta1": 0.5, "beta2": 0.999, "eps": 1e-8}  # it has no beta
    assert adam.model == get_preset("digits").config.model


def test_a_file_without_a_preset_compares_an_optimizer_with_its_baseline(tmp_path):
    preset = read_preset(write(tmp_path, '[optimizer]\nname = "discover_adam"\nlearning_rate = 0.001'))
    assert preset.compare == ("adam", "discover_adam")
    assert preset.config_for("discover_adam").optimizer.learning_rate == 0.001
    assert preset.config_for("sgd").check().optimizer.arguments == {}


def test_the_config_of_a_run_is_a_file_to_train_from(tmp_path):
    config = get_preset("digits").config_for("discover").override(["training.steps=7", "optimizer.l2=0.1"])
    preset = read_preset(write(tmp_path, config.to_json(), "config.json"))
    assert preset.config_for(preset.config.optimizer.name) == config


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("[training]\nstep = 5", "a.toml", "unknown key 'training.step': did you mean 'training.steps'?"),
        ("[traning]\nsteps = 5", "a.toml", "unknown key 'traning.steps': did you mean 'training.steps'?"),
        ('comapre = ["adam"]', "a.toml", "unknown key 'comapre': did you mean 'compare'?"),
        ('{"optimizer": {"btea": 0.5}}', "a.json", "unknown key 'optimizer.btea': did you mean 'optimizer.beta'?"),
        ("[optimizers.adam]\nbeta9 = 1", "a.toml", "unknown key 'optimizer.beta9': did you mean 'optimizer.beta'?"),
        ("[optimizers.adm]\nbeta1 = 1", "a.toml", "unknown optimizer 'adm': did you mean 'adam'?"),
        ('compare = ["momentm"]', "a.toml", "unknown optimizer 'momentm': did you mean 'momentum'?"),
        ('compare = ["nowhere:mine"]', "a.toml", "optimizer 'nowhere:mine': there is no module 'nowhere'"),
        ("compare = 3", "a.toml", "compare must be names separated by commas, got 3"),
        ('preset = "digit"', "a.toml", "unknown preset 'digit': did you mean 'digits'?"),
        ('preset = "os:getcwd"', "a.toml", "preset 'os:getcwd' must return a Preset, got str"),
        ('[training]\nsteps = "many"', "a.toml", "training.steps must be a whole number or none, got 'many'"),
        ("training = 5", "a.toml", "unknown key 'training'"),
        ("this is not TOML", "a.toml", "a.toml is not TOML"),
        ("{", "a.json", "a.json is not JSON"),
        ("[]", "a.json", "a.json must have keys and values, got list"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line_and_exit_code_2(text, name, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(tmp_path, text, name)
    with pytest.raises(SystemExit) as ended:
        main(["train", "--config", name])
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("discover: ")
    assert name in err
    assert message in err
