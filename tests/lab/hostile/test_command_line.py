"""Whatever the command line is handed, it says in one line what is wrong and ends with code 2; nothing raw is shown."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from discover.lab.cli import console, main, options
from discover.lab.cli.errors import naming, run_command
from discover.lab.data.sources.kinds import name_of
from discover.lab.text import printable
from tests.lab.hostile.mutated import KINDS, write_whole

SMALL = ["--set", "training.steps=1", "--set", "model.name=logistic", "--set", "model.width=none"]
SMALL += ["--set", "model.depth=none"]


def call(*arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(one) for one in arguments])
    return stop.value.code


def assert_one_line(capsys, *words):
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("discover: ")
    assert err.count("\n") == 1
    assert err.removesuffix("\n").isprintable()
    for word in words:
        assert word in err


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "text"])  # to which any bytes are text
def test_random_bytes_in_every_format_are_one_line_with_the_name_of_the_file(kind, tmp_path, monkeypatch, capsys):
    source, path, damaged = write_whole(kind, tmp_path)
    damaged.write_bytes(np.random.default_rng(0).bytes(3000))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DISCOVER_CACHE", str(tmp_path / "cache"))
    chosen = ["--set", "clusters.by=file", "--set", f"clusters.path={path}"]
    if source != "clustering":
        chosen = ["--set", f"data.source={source}", "--set", f"data.path={path}"]
    assert call("train", "digits", *SMALL, *chosen, "--out", tmp_path / "run") == 2
    assert_one_line(capsys, damaged.name)
    assert not (tmp_path / "run").exists()


def test_a_pipe_among_own_pictures_is_one_line(tmp_path, monkeypatch, capsys):
    for name in ("ant", "bee"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(4):
            Image.new("RGB", (8, 8)).save(tmp_path / "pictures" / name / f"{number}.png")
    os.mkfifo(tmp_path / "pictures/bee/9.png")
    monkeypatch.chdir(tmp_path)
    assert call("diagnose", "pictures") == 2
    assert_one_line(capsys, "9.png is a pipe")


def test_a_class_for_every_example_is_one_line(tmp_path, monkeypatch, capsys):
    np.savez(tmp_path / "many.npz", images=np.zeros((3000, 2, 2), np.uint8), labels=np.arange(3000))
    monkeypatch.chdir(tmp_path)
    assert call("diagnose", "many.npz") == 2
    assert_one_line(capsys, "many has 3,000 classes for 3,000 examples", "give --label COLUMN")


@pytest.mark.parametrize("name", ["deep.json", "deep.toml"])
def test_a_configuration_that_is_nested_too_deep_is_one_line(name, tmp_path, capsys):
    (tmp_path / name).write_text("a = " * name.endswith("toml") + "[" * 100_000)
    assert call("train", "--config", tmp_path / name) == 2
    assert_one_line(capsys, name)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("dots.toml", ".".join("a" * 30_000) + " = 1", "a key of 29999 dots"),
        ("tables.toml", "".join(f"[a{n}]\n" for n in range(20_000)), "TOML is read up to 100,000"),
        ("pipe.json", None, "is a pipe; only ordinary files are read"),
    ],
)
def test_a_configuration_that_would_never_be_read_to_its_end_is_one_line(name, text, words, tmp_path, capsys):
    os.mkfifo(tmp_path / name) if text is None else (tmp_path / name).write_text(text)
    assert call("train", "--config", tmp_path / name) == 2
    assert_one_line(capsys, name, words)


@pytest.mark.parametrize("record", [{"rows": 3}, {"rows": [3]}, {"rows": [{"run": 3}]}, {"rows": [{"run": "x"}]}])
def test_records_that_say_what_they_cannot_are_one_line_with_the_name_of_the_folder(record, tmp_path, capsys):
    (tmp_path / "comparison.json").write_text(json.dumps(record))
    assert call("report", tmp_path) == 2
    assert_one_line(capsys, tmp_path.name)


@pytest.mark.parametrize("name", ["comparison.json", "metrics.jsonl"])
def test_a_record_that_is_all_holes_is_not_read(name, tmp_path, capsys):
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, 1 << 36)
    assert call("report", tmp_path) == 2
    assert_one_line(capsys, name, "are holes")


def test_the_name_of_a_setting_leads_to_no_other_folder():
    assert str(options.run_folder("../../x\\y\0z", "mine:adam")) == "runs/......x.y.z-mine.adam"
    assert str(options.run_folder("/etc/x", "adam")) == "runs/.etc.x-adam"


def test_a_line_that_would_list_thousands_of_columns_keeps_its_ends_only(tmp_path, monkeypatch, capsys):
    names = [f"column{number}" for number in range(3000)]
    (tmp_path / "wide.csv").write_text("\n".join([",".join(names), ",".join("1" * 3000)]))
    monkeypatch.chdir(tmp_path)
    assert call("diagnose", "wide.csv", "--label", "nope") == 2
    line = capsys.readouterr().err
    assert line.startswith("discover: wide.csv has no column 'nope': the columns are column0, ")
    assert line.endswith("… (3000 in all)\n")
    assert len(line) < 1100


def test_a_name_that_is_not_utf_8_can_be_drawn(tmp_path):
    assert name_of(tmp_path / "\udcff\x1b[2J.csv") == "\\udcff\\x1b[2J"


def test_the_net_catches_what_nobody_has_thought_of(capsys):
    class Command:
        def main(self, **_):
            raise RecursionError("in a \x1b[2Jfile\nwith\ttwo lines")

    assert run_command(Command()) == 2
    assert_one_line(capsys, "RecursionError: in a \\x1b[2Jfile", "DISCOVER_DEBUG=1")


@pytest.mark.parametrize(("number", "words"), [(27, "may not grow"), (28, "disk is full"), (122, "disk is full")])
def test_all_that_keeps_a_file_from_growing_ends_alike(number, words, capsys):
    class Command:
        def main(self, **_):
            raise OSError(number, os.strerror(number), "runs/x")

    assert run_command(Command()) == 2
    assert_one_line(capsys, words, "runs/x; free some space and run the same command again")


def test_a_disk_that_is_full_while_a_file_without_a_name_is_written_is_said_with_the_folder(capsys):
    class Command:
        def main(self, **_):
            with naming(Path("runs/x")):
                raise OSError(28, os.strerror(28))

    assert run_command(Command()) == 2
    assert_one_line(capsys, "the disk is full in runs/x; free some space and run the same command again")


@settings(max_examples=100)
@given(st.text(st.characters(), max_size=30))
def test_text_is_shown_on_one_line_without_control_characters_and_otherwise_as_it_is(text):
    shown = printable(text)
    assert len(f"{shown}x".splitlines()) == 1
    assert shown.replace("\u3000", "").replace("\xa0", "").isprintable() or any(c.isspace() for c in shown)
    shown.encode()  # also names that are not UTF-8
    if text.isprintable():
        assert shown == text


def test_tables_messages_and_lines_show_control_characters_and_do_not_send_them(capsys):
    bad = "cat\x1b[2J\x9b\x07\udcff"
    console.show_grid(["name", "b"], [[bad, "1"]], title=bad)
    console.stdout().print(bad, markup=False)
    console.say(bad)
    console.Watcher(None, bad).message(bad)
    shown = "".join(capsys.readouterr())
    assert shown.count("cat\\x1b[2J\\x9b\\x07\\udcff") == 6
    assert not any(one in shown for one in "\x1b\x9b\x07\udcff")
