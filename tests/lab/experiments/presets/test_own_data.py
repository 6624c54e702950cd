"""A path in place of a preset: what it stands for, what is chosen for it, and every command with it."""

import json
import re

import numpy as np
import pytest

from discover.lab.data import DataError
from discover.lab.experiments.config.config import Config, ConfigError
from discover.lab.experiments.presets.setting import data_overrides, setting_of
from discover.lab.experiments.run.build import load_data
from discover.registry import UnknownName
from tests.lab.data import files
from tests.lab.test_cli import call

QUICK = ["--seeds", "1", "--set", "training.steps=4", "--set", "training.eval_every=4"]
COMMANDS = {
    "compare": ["--optimizers", "discover", "--no-control", "--learning-rates", "0.1"],
    "train": [],
    "sweep": ["--axis", "learning_rate=0.1"],
}


@pytest.fixture
def scans(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    features = rng.normal(size=(90, 5)) + labels[:, None]
    np.savez(tmp_path / "scans.npz", images=features, labels=labels, hospital=rng.choice(["north", "south"], 90))
    lines = [",".join(map(str, [*row, "ab"[k % 2], label])) for k, (row, label) in enumerate(zip(features, labels))]
    (tmp_path / "scans.csv").write_text("\n".join(["a,b,c,d,e,hospital,label", *lines]))
    names = [f"{domain}/{kind}/{k}.png" for domain in ("photo", "sketch") for kind in ("cat", "dog") for k in range(6)]
    files.write_files(tmp_path / "pets", {name: files.picture((k * 9, 0, 0)) for k, name in enumerate(names)})
    files.write_tar(tmp_path / "large.tar", {name: files.picture("red", (90, 70)) for name in names})
    lines = [f"{k} {'ab' * 20 if k % 2 else 'xyz' * 20},{['ewe', 'zulu'][k % 2]}" for k in range(200)]
    (tmp_path / "verses.csv").write_text("\n".join(["verse,language", *lines]))
    files.write_tar(tmp_path / "verses.tar.xz", {"ewe.txt": b"ab" * 4000, "zulu.txt": b"xyz" * 4000})
    return tmp_path


@pytest.mark.parametrize(
    ("name", "options", "model", "shape", "clusters"),
    [
        ("scans.npz", {}, "mlp", (5,), "classes (3)"),
        ("scans.csv", {"clusters": "hospital"}, "mlp", (5,), "hospital (2)"),
        ("verses.tar.xz", {"clusters": "language"}, "transformer", (128,), "language (2)"),
        ("verses.tar.xz", {}, "transformer", (128,), "file (2)"),
        ("pets", {"layout": "domain/class"}, "cnn", (5, 6, 3), "domain (2)"),
        ("large.tar", {"layout": "domain/class", "clusters": "class"}, "cnn", (32, 32, 3), "classes (2)"),
        ("large.tar", {"layout": "a/b", "label": "a", "image_size": 9}, "cnn", (9, 9, 3), "b (2)"),
    ],
)
def test_a_path_is_a_setting_that_suits_its_size_and_shape(scans, name, options, model, shape, clusters):
    said = {key: options.get(key) for key in ("layout", "label", "clusters", "image_size", "on_bad_image")}
    overrides = data_overrides(**said)
    preset, loaded, (note,) = setting_of(str(scans / name), overrides)
    config = preset.config.override(overrides).check()
    assert preset.name == name.partition(".")[0]
    assert (config.model.name, loaded.example_shape) == (model, shape)
    assert f"clusters: {clusters}" in preset.summary
    assert preset.summary in note
    assert f"{config.training.steps} steps" in note
    assert "\n" not in note
    assert ("resized" in note) == (name == "large.tar" and "image_size" not in options)


def test_a_batch_of_more_examples_than_there_are_is_told(scans):
    sentence = "1 class-pure group of 1000 is more than the 72 training examples of scans: lower batches.group_size"
    with pytest.raises(ConfigError, match=sentence):
        setting_of(str(scans / "scans.npz"), ["batches.group_size=1000"])


def test_fewer_steps_are_judged_as_often(scans):
    for steps in (None, 40, 3):
        overrides = [] if steps is None else [f"training.steps={steps}"]
        training = setting_of(str(scans / "scans.npz"), overrides).preset.config.override(overrides).training
        assert training.eval_every == max(1, training.steps // 5)
        assert training.log_every <= training.eval_every


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_a_path_and_names_its_run_after_it(scans, command, capsys, monkeypatch):
    monkeypatch.chdir(scans)
    assert call(command, "scans.npz", "--clusters", "hospital", *COMMANDS[command], *QUICK) == 0
    out, err = capsys.readouterr()
    assert err.startswith("scans: 90 rows of 5 numbers, 3 classes; clusters: hospital (2). Chosen for it: mlp, ")
    folder = next((scans / "runs").iterdir())
    assert "scans" in folder.name
    if command == "compare":
        record = json.loads((folder / "comparison.json").read_text())
        assert record["preset"] == "scans"
        assert record["description"] == "90 rows of 5 numbers, 3 classes; clusters: hospital (2)"
    if command == "sweep":
        assert "discover train scans.npz --optimizer discover --clusters hospital --set training" in out


def test_diagnose_speaks_of_the_clusters_that_were_chosen_and_ends_with_a_command(scans, capsys, monkeypatch):
    monkeypatch.chdir(scans)
    quick = ["--sample", "40", "--warmup", "2", "--group-size", "4"]
    assert call("diagnose", "scans.npz", "--clusters", "hospital", *quick) == 0
    out, err = capsys.readouterr()
    assert "- column hospital: with 1 group per batch" in out
    assert "k-means on features, " in out  # rows of numbers have no pixels
    given = "--clusters hospital --set batches.group_size=4"
    assert f"\ndiscover compare scans.npz {given} --optimizers momentum," in out
    assert "diagnose scans: about " in err


def test_what_is_left_out_and_what_cannot_be_judged_is_counted_and_said(scans):
    (scans / "pets" / "photo" / "fox").mkdir()
    files.write_files(scans / "pets", {"photo/cat/a.heic": b"", "sketch/cat/b.heic": b"", "readme.md": b""})
    files.write_files(scans / "pets", {"sketch/owl/0.png": files.picture("red")})
    _, *said = setting_of(str(scans / "pets"), ["data.layout=domain/class"]).notes
    assert said == [
        "left out: files that are no pictures that can be read: 2 .heic, 1 .md; empty folders: 1",
        "classes of a single example, which nothing can be said about: 1 (owl)",
    ]
    names = ["readme.txt", "IMG_1.heic", *(f"{kind}/{k}.png" for kind in ("cat", "dog") for k in range(6))]
    files.write_tar(scans / "kinds.tar", {name: files.picture("red") for name in names})  # a text before all pictures
    (_, said) = setting_of(str(scans / "kinds.tar")).notes
    assert said == "left out: files that are no pictures that can be read: 1 .txt, 1 .heic"
    files.write_files(scans / "books", {"a.txt": b"ab" * 4000, "b.txt": b"xyz" * 4000, "c.txt": b"", "cover.png": b""})
    with pytest.warns(UserWarning, match="left out files of less than 128 bytes in .*books: c.txt"):
        (_, said) = setting_of(str(scans / "books")).notes
    assert said == r"left out: files that are no text (.txt): 1 .png"


def test_columns_that_are_no_features_and_features_of_uneven_spread_are_said(scans):
    (note, *said) = setting_of(str(scans / "scans.csv")).notes
    assert "rows of 5 numbers" in note
    assert said == ["columns of words are no features: hospital"]
    with pytest.raises(DataError, match=r"scans has \d\d classes for 90 examples, too few to learn from") as error:
        setting_of(str(scans / "scans.csv"), ["data.label=a"])  # a measurement
    assert error.value.on_command_line.endswith("give --label COLUMN")
    lines = ["a,b,label", *(f"{k % 7},{k % 3},{100 + k // 3}.5" for k in range(300))]  # each value three times
    (scans / "measured.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match="measured has 100 classes for 300 examples, too few to learn"):
        setting_of(str(scans / "measured.csv"))
    *_, said = setting_of(str(scans / "scans.csv"), ["clusters.by=column", "clusters.column=a"]).notes
    assert re.fullmatch(r"clusters of a single training example: \d\d of \d\d", said)
    (scans / "alone.txt").write_bytes(b"ab" * 4000)
    (_, said) = setting_of(str(scans / "alone.txt")).notes
    assert said.startswith("there is one cluster, and on one cluster Discover is Momentum")
    arrays = dict(np.load(scans / "scans.npz"))
    np.savez(scans / "uneven.npz", **(arrays | {"images": arrays["images"] * [1, 1, 0, 1, 5000]}))
    (said,) = setting_of(str(scans / "uneven.npz")).notes[1:]
    assert said.startswith("features are taken as they are, with spreads of 1")
    assert said.endswith(": standardized ones (as a table's are) are learned better")


def test_a_column_of_text_without_a_label_says_that_the_next_byte_is_learned(scans):
    path, overrides = str(scans / "verses.csv"), ["clusters.by=column", "clusters.column=language"]
    preset, loaded, (note, task) = setting_of(path, overrides)
    assert loaded is not None
    assert loaded.next_byte
    assert preset.config.model.name == "transformer"
    assert "the next byte (loss in nats; bits are 1.44 times as many); clusters: language (2)" in note
    assert task.endswith("so the next byte of the text is learned; --label NAME learns a column")
    with pytest.raises(DataError, match="has text and no label, so no classes to make clusters of") as error:
        setting_of(path)
    assert error.value.on_command_line.endswith(": give --clusters COLUMN")


def test_one_broken_picture_stops_a_command_unless_it_is_told_to_skip(scans, capsys, monkeypatch):
    monkeypatch.chdir(scans)
    (scans / "pets" / "photo" / "cat" / "bad.png").write_bytes(b"no picture")
    arguments = ["train", "pets", "--layout", "domain/class", *QUICK]
    assert call(*arguments) == 2
    assert capsys.readouterr().err.endswith("leave such out: give --on-bad-image skip\n")
    with pytest.warns(UserWarning, match="skipped 1 of 25 images"):
        assert call(*arguments, "--on-bad-image", "skip") == 0


def test_a_value_that_is_not_finite_is_found_when_loading(tmp_path, capsys):
    features = np.ones((20, 4))
    features[7, 2] = np.nan
    np.savez(tmp_path / "scans.npz", images=features, labels=np.arange(20) % 2)
    assert call("train", tmp_path / "scans.npz", "--out", tmp_path / "out") == 2
    assert "got nan in row 7, column 2 (both count from 0)" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_without_a_terminal_a_line_of_progress_comes_at_intervals(capsys, monkeypatch):
    from discover.lab.cli import console

    now = iter(range(0, 10_000, 20))
    monkeypatch.setattr(console.time, "monotonic", lambda: float(next(now)))
    watcher = console.Watcher(None, "1/2 Discover ")
    watcher.start(step=0, total_steps=100, members=3)
    for step in (20, 30):
        watcher.advance(step=step, loss=1.5, accuracy=0.25, steps_per_second=0.5)
    watcher.start(step=30, total_steps=100, members=3)
    said = ["step 20 of 100, loss 1.500, accuracy 25.0 %, 3 minutes to go", "compiling"]
    assert capsys.readouterr().err.splitlines() == [f"1/2 Discover: {line}" for line in said]


def test_many_short_runs_are_not_silent_together(capsys, monkeypatch):
    from discover.lab.cli import console

    now = iter(range(0, 10_000, 20))
    monkeypatch.setattr(console.time, "monotonic", lambda: float(next(now)))
    watcher = None
    for number in (1, 2, 3, 4):  # each looks at the clock once, 20 seconds after the one before it
        watcher = console.Watcher(None, f"{number}/4 Muon", after=watcher)
        watcher.advance(step=1, loss=1.5, accuracy=0.25, steps_per_second=0.5)
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["2/4 Muon", "4/4 Muon"]


def test_what_is_neither_a_preset_nor_a_path_is_told(tmp_path):
    for wrong, error, message in (
        ("digit", ValueError, "did you mean 'digits'"),
        ("no/such", ConfigError, "there is no folder or file no/such"),
        ("./such", ConfigError, "there is no folder or file ./such"),
        ("such", UnknownName, "there is no folder or file such; unknown preset 'such': choose from "),
        (str(tmp_path), DataError, "neither pictures nor text"),
        (__file__, DataError, "no file of a kind that is read"),
    ):
        with pytest.raises(error, match=message):
            setting_of(wrong)


@pytest.mark.parametrize(
    ("source", "override", "sentence"),
    [
        ("table", ["data.layout=a/b"], "--layout is for data of the kinds folder, text, and x is read as table"),
        ("npz", ["data.size=9"], "--image-size is for data of the kinds folder, and x is read as npz"),
        ("digits", [], "--data is for data of the kinds .*, and x is read as digits"),
    ],
)
def test_an_option_that_the_data_does_not_have_is_told_by_the_name_it_is_typed_with(source, override, sentence):
    with pytest.raises(ConfigError, match=sentence):
        load_data(Config(name="own").with_values({"data.source": source, "data.path": "x"}).override(override))
