"""The command line: help, results, and one line with exit code 2 for everything that is wrong with the input."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from discover.lab.cli import build_app, main
from discover.lab.records import spread
from tests.lab.report.synthetic import write_comparison

SMALL = [
    "--seeds", "2", "--set", "training.steps=20", "--set", "training.eval_every=10", "--set", "model.name=logistic",
    "--set", "model.width=none", "--set", "model.depth=none", "--set", "batches.group_size=8",
    "--set", "training.steps_per_dispatch=10",
]  # fmt: skip
ENVIRONMENT = {**os.environ, "JAX_PLATFORMS": "cpu", "COLUMNS": "120"}


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    return int(ended.value.code or 0)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "discover", *map(str, arguments)]


BAD = {
    "unknown command": (["comparre"], "comparre"),
    "unknown option": (["compare", "--optimizer", "adam"], "--optimizer"),
    "unknown preset": (["compare", "digit"], "unknown preset 'digit': did you mean 'digits'"),
    "unknown preset to show": (["presets", "imagenet"], "did you mean 'imagenet-augment"),
    "missing preset": (["train"], "say what to train on: the path of your data, a preset"),
    "preset and file": (["train", "digits", "--config", "a.toml"], "give a preset or --config, not both"),
    "no such file": (["compare", "--config", "no.toml"], "cannot read no.toml: No such file"),
    "file of another kind": (["bench", "--config", "no.yaml"], "a .toml or .json file, got no.yaml"),
    "unknown optimizer": (["train", "digits", "--optimizer", "discoverr"], "did you mean 'discover'"),
    "unknown key": (["train", "digits", "--set", "training.step=5"], "did you mean 'training.steps'"),
    "wrong type": (["train", "digits", "--set", "training.steps=many"], "a whole number"),
    "wrong type of an option": (["compare", "--target", "high"], "--target"),
    "no seeds": (["compare", "--seeds", "0"], "--seeds must be at least 1, got 0"),
    "target in percent": (["compare", "--target", "95"], "did you mean 0.95"),
    "rates that are no numbers": (["compare", "--learning-rates", "a,b"], "numbers separated by commas"),
    "both ways": (["train", "digits", "--resume", "--overwrite"], "exclude each other"),
    "nothing to report": (["report", "no/such/folder"], "no such directory: no/such/folder"),
    "json into nowhere": (["presets", "--json", "no/such/folder/file.json"], "there is no folder"),
    "json onto a folder": (["presets", "--json", "."], "it is a folder"),
    "no time": (["sweep", "digits", "--minutes", "0"], "--minutes must be above 0"),
    "storage alone": (
        ["sweep", "digits", "--storage", "sqlite:///x.db"],
        "--storage goes with --search tpe",
    ),
    "unknown search": (["sweep", "digits", "--search", "tep"], "did you mean 'tpe'"),
    "no result": (["reproduce"], "say which result"),
    "unknown result": (["reproduce", "results-z"], "unknown result 'results-z'"),
    "unknown scale": (["reproduce", "results-a", "--scale", "large"], "unknown scale 'large'"),
    "no record": (["reproduce", "results-a", "--redraw"], "there is no record of results-a in runs/reproduce-small"),
    "too small a sample": (["diagnose", "digits", "--sample", "3"], "--sample must be at least 20"),
    "too many devices": (["train", "digits", "--devices", "99"], "the number of devices must be from 1 to 8, got 99"),
    "an odd number of devices": (
        ["train", "digits", "--devices", "3", "--set", "batches.groups=4"],
        "batches.groups must be a multiple of the 3 devices",
    ),
    "a coordinator alone": (["train", "digits", "--coordinator", "here"], "goes with --num-processes and --process-id"),
    "of another model": (
        ["train", "digits", "--set", "model.name=logistic"],
        "'logistic' has no depth (got 2)",
    ),
}


@pytest.mark.parametrize(("arguments", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_line_and_exit_code_2(arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert call(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("discover: ")
    assert err.count("\n") == 1
    assert message in err
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_has_thought_of_is_one_line_that_says_how_to_see_its_traceback(monkeypatch, capsys):
    import discover.lab.experiments.presets.presets

    def bug(name):
        raise ZeroDivisionError("a bug\x1b[2J\nwith a second line")

    monkeypatch.setattr(discover.lab.experiments.presets.presets, "get_preset", bug)
    assert call("presets", "digits") == 2
    expected = "discover: ZeroDivisionError: a bug\\x1b[2J (DISCOVER_DEBUG=1 shows where)\n"
    assert capsys.readouterr().err == expected
    monkeypatch.setenv("DISCOVER_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["presets", "digits"])


@pytest.mark.parametrize("name", [c.name for c in build_app().registered_commands])
def test_every_command_has_help_with_an_example(name, capsys):
    assert call(name, "--help") == 0
    assert f"Example: discover {name}" in " ".join(capsys.readouterr().out.split())


def test_help_is_quick():
    before = os.times()
    done = subprocess.run(command("--help"), capture_output=True, text=True, check=True)
    after = os.times()
    assert "compare" in done.stdout
    assert after.children_user + after.children_system - before.children_user - before.children_system < 1.0


def test_version(capsys):
    from discover import __version__

    assert call("--version") == 0
    assert capsys.readouterr().out == f"discover {__version__}\n"


def test_presets_are_listed_and_shown(capsys, tmp_path):
    assert call("presets", "--json", tmp_path / "all.json") == 0
    listed = capsys.readouterr().out
    everything = json.loads((tmp_path / "all.json").read_text())
    assert {"digits", "cifar10-classes", "imagenet-augment-noise08"} <= set(everything)
    assert all(name in listed for name in everything)
    assert call("presets", "cifar10-classes", "--json", tmp_path / "one.json") == 0
    shown = capsys.readouterr().out
    assert "training.epochs=400.0" in shown
    assert "reported: 95.3 %" in shown
    from discover.lab.experiments.config.keys import argument_keys, key_types
    from discover.lab.experiments.presets.presets import get_preset

    keys = (*key_types(), *argument_keys(get_preset("cifar10-classes").config))
    assert all(f"  {key}" in shown for key in keys)  # --set's help says that all are listed
    one = json.loads((tmp_path / "one.json").read_text())
    assert one["optimizers"]["paper_discover"] == {"learning_rate": 0.01, "alpha": 0.095, "alpha_n": 0.1}


def test_json_to_stdout_is_nothing_but_json(capsys):
    assert call("presets", "digits", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["name"] == "digits"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a run, and what the command printed, in files beside it."""
    directory = tmp_path_factory.mktemp("cli") / "run"
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert call("train", "digits", "--optimizer", "discover", "--out", directory, *SMALL) == 0, err.getvalue()
    (directory.parent / "stdout").write_text(out.getvalue())
    (directory.parent / "stderr").write_text(err.getvalue())
    return directory


def test_training_leaves_records_figures_and_a_page(trained):
    for name in ("config.json", "environment.json", "metrics.jsonl", "summary.json", "report.html"):
        assert (trained / name).is_file()
    assert len(list((trained / "figures").iterdir())) == 6
    config = json.loads((trained / "config.json").read_text())
    assert config["training"]["seeds"] == [0, 1]
    assert config["training"]["steps"] == 20


def test_a_folder_with_a_run_in_it_is_refused(trained, capsys):
    assert call("train", "digits", "--optimizer", "discover", "--out", trained, *SMALL) == 2
    assert "already holds a run" in capsys.readouterr().err
    assert call("train", "digits", "--optimizer", "momentum", "--out", trained, "--resume", *SMALL) == 2
    err = capsys.readouterr().err
    assert "optimizer" in err
    assert err.count("\n") == 1


def test_a_finished_run_is_resumed_at_once_with_the_same_result(trained, capsys, tmp_path):
    before = (trained / "metrics.jsonl").read_bytes()
    result = tmp_path / "result.json"
    assert call("train", "digits", "--out", trained, "--resume", "--json", result, *SMALL) == 0
    assert (trained / "metrics.jsonl").read_bytes() == before
    assert json.loads(result.read_text())["status"] == "finished"
    assert "open" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_refused(capsys, tmp_path):
    (tmp_path / "file").write_text("")
    for arguments in (["train", "digits"], ["compare", "digits"]):
        assert call(*arguments, "--out", tmp_path / "file" / "x", *SMALL) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert str(tmp_path / "file") in err


@pytest.mark.parametrize("name", ["train", "compare"])
def test_data_that_is_not_there_is_one_line(name, capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    arguments = [name, "cifar10-classes-small", "--data", tmp_path / "empty", "--out", tmp_path / "out"]
    assert call(*arguments) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"cifar10 is not in {tmp_path / 'empty'}" in err


def test_a_report_is_drawn_from_records(capsys, tmp_path):
    directory = write_comparison(tmp_path / "c", labels=("momentum", "discover"))
    assert call("report", directory, "--static", "--json", tmp_path / "r.json") == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"open {directory / 'report.html'} in a browser"
    assert "<script" not in (directory / "report.html").read_text()
    assert [row["label"] for row in json.loads((tmp_path / "r.json").read_text())["rows"]] == ["momentum", "discover"]


def test_a_full_disk_is_one_line(capsys, monkeypatch, tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("there is no /dev/full on this machine")
    assert call("presets", "digits", "--json", "/dev/full") == 2
    err = capsys.readouterr().err
    assert err == "discover: cannot write /dev/full: No space left on device\n"
    assert Path("/dev/full").is_char_device()


@pytest.fixture
def tiny_disk(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None or subprocess.run(options, check=False).returncode != 0:
        pytest.skip("a tiny file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.slow
def test_a_disk_that_fills_up_in_training_is_one_line(tiny_disk):
    arguments = command("compare", "digits", "--out", tiny_disk / "out", *SMALL)
    done = subprocess.run(arguments, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert "no space left" in done.stderr


def test_training_stops_where_a_loss_is_no_longer_finite_unless_told_to_drop(capsys, tmp_path):
    diverging = ["train", "digits", *SMALL, "--learning-rate", "3e38"]
    assert call(*diverging, "--out", tmp_path / "stop") == 1
    assert "no other is left" not in capsys.readouterr().err
    assert call(*diverging, "--out", tmp_path / "drop", "--set", "training.on_nonfinite=drop") == 1
    assert "no other is left" in capsys.readouterr().err


def rows_of(**means):
    """Rows with (validation, test) accuracies, each of two seeds that are alike."""
    spreads = {label: [spread([mean] * 2) for mean in pair] for label, pair in means.items()}
    rows = [
        {"label": label.replace("__", "-"), "validation_accuracy": validation, "test_accuracy": test}
        for label, (validation, test) in spreads.items()
    ]
    return {"rows": rows}


def test_the_variant_in_the_headline_is_chosen_on_validation():
    from discover.lab.cli.compare import remarks

    means = {"momentum": (0.5, 0.5), "discover": (0.9, 0.8), "discover_qhm": (0.8, 0.9), "momentum__shuffled": (1, 1)}
    assert remarks(rows_of(**means)) == [
        "Discover wins back 60% of what clustered batches cost Momentum.",
        "Discover is 30.0 points ahead of Momentum (80.0 ± 0.0 % and 50.0 ± 0.0 %).",
    ]


def test_a_share_is_told_only_where_something_was_won_back():
    from discover.lab.cli.compare import remarks

    means = {"momentum": (0.5, 0.5), "discover": (0.4, 0.4), "momentum__shuffled": (0.7, 0.7)}
    assert remarks(rows_of(**means)) == ["Discover is 10.0 points behind Momentum (40.0 ± 0.0 % and 50.0 ± 0.0 %)."]


def test_what_may_be_chance_is_not_called_won_back():
    from discover.lab.cli.compare import remarks

    found = {"momentum": [0.93, 0.95], "discover": [0.94, 0.97], "momentum-shuffled": [0.94, 0.97]}
    rows = [{"label": name, "test_accuracy": spread(v), "validation_accuracy": spread(v)} for name, v in found.items()]
    assert remarks({"rows": rows}) == [
        "Discover and Momentum: no difference that 2 seeds could tell (95.5 ± 2.1 % and 94.0 ± 1.4 %)."
    ]
    for row in rows:
        row["test_accuracy"] = spread(row["test_accuracy"]["values"][1:])
    assert remarks({"rows": rows}) == ["Discover is 2.0 points ahead of Momentum on one seed, which says little."]


def test_each_variant_is_compared_with_its_own_baseline_as_far_as_the_seeds_can_tell():
    from discover.lab.report.against import against_baselines

    found = {"momentum": (0.5, 0.52), "adam": (0.7, 0.9), "muon": (0.9, 0.91), "discover": (0.8, 0.82)}
    found |= {"discover_adam": (0.78, 0.86), "discover_muon": (0.6, 0.61), "discover_qhm": (0.9, 0.9)}
    rows = [{"label": label, "test_accuracy": spread(values)} for label, values in found.items()]
    assert against_baselines(rows) == [
        "Discover is 30.0 points ahead of Momentum (81.0 ± 1.4 % and 51.0 ± 1.4 %).",
        "Discover-Adam and Adam: no difference that 2 seeds could tell (82.0 ± 5.7 % and 80.0 ± 14.1 %).",
        "Discover-Muon is 30.0 points behind Muon (60.5 ± 0.7 % and 90.5 ± 0.7 %).",
    ]


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_step_count_and_the_time_left_are_never_cut(width):
    from rich.console import Console
    from rich.progress import Progress

    from discover.lab.cli.console import Watcher, progress_columns

    console = Console(file=io.StringIO(), force_terminal=True, width=width)
    now = iter(range(10**6))
    bars = Progress(*progress_columns(width), console=console, get_time=lambda: float(next(now)))
    watcher = Watcher(bars, "9/9 Momentum, shuffled (control)")
    watcher.start(step=0, total_steps=78000, members=5)
    for step in (100, 200, 12345):
        watcher.advance(step=step, loss=1.234, accuracy=0.567, steps_per_second=1234.0)
    with console.capture() as capture:
        console.print(bars.make_tasks_table(bars.tasks))
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in capture.get().splitlines()]
    assert len(lines) == 1
    assert "12345/78000" in lines[0]
    assert re.search(r"\d\d:\d\d\s*$", lines[0]), lines[0]


def test_nothing_is_drawn_where_there_is_no_terminal(trained):
    assert (trained.parent / "stderr").read_text() == ""
    out = (trained.parent / "stdout").read_text()
    assert "\x1b" not in out
    assert out.splitlines()[-1] == f"open {trained / 'report.html'} in a browser"


def test_ctrl_c_says_how_to_go_on_and_going_on_works(tmp_path):
    options = ["--set", "training.steps=2000", *SMALL[:2], *SMALL[4:], "--optimizers", "momentum", "--no-control"]
    arguments = ["compare", "digits", "--learning-rates", "0.1", "--out", tmp_path / "c", *options]
    process = subprocess.Popen(command(*arguments), stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    metrics = tmp_path / "c" / "grids" / "momentum" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    hint = f"stopped, and nothing is lost: run the same command again to continue in {tmp_path / 'c'}"
    assert err == f"discover: {hint}\n"
    assert not list((tmp_path / "c").rglob("*.lock"))
    stopped = json.loads((metrics.parent / "summary.json").read_text())
    assert stopped["status"] == "stopped"
    assert 0 < stopped["steps"] < 2000
    assert call(*arguments) == 0
    assert json.loads((metrics.parent / "summary.json").read_text())["steps"] == 2000


def test_a_command_that_is_terminated_says_so_and_leaves_nothing_behind(tmp_path):
    arguments = command("diagnose", "digits", "--out", tmp_path / "new" / "d")
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (tmp_path / "new/d/.lock").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60)[1] == "discover: stopped\n"
    assert process.returncode == 143
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_comes_inside_a_destructor_still_stops_the_command(number, code):
    script = f"""
import signal, sys, time
from discover.lab.cli.errors import run_command, unwind_on_signals

class Command:
    def __del__(self):
        signal.raise_signal({int(number)})
        time.sleep(0)  # the handler runs here, where nobody hears what it raises

    @classmethod
    def main(cls, **_):
        del cls.waiting
        time.sleep(120)

signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it
unwind_on_signals()
Command.waiting = Command()
sys.exit(run_command(Command))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=ENVIRONMENT, timeout=60)
    assert (ended.stderr, ended.returncode) == ("discover: stopped\n", code)


def test_the_words_of_the_command_line_name_what_can_be_typed_there(capsys, tmp_path):
    from tests.lab.data.files import picture, write_files

    names = [f"{domain}/{kind}/{k}.png" for domain in ("photo", "sketch") for kind in ("cat", "dog") for k in range(3)]
    write_files(tmp_path / "pets", dict.fromkeys(names, picture("red")))
    assert call("diagnose", tmp_path / "pets", "--out", tmp_path / "out") == 2
    assert capsys.readouterr().err.endswith("is not said: give --layout domain/class\n")
    given = ["--layout", "domain/class", "--out", tmp_path / "out"]
    assert call("diagnose", tmp_path / "pets", *given, "--clusters", "domian") == 2
    assert "there is no column 'domian': did you mean 'domain'? the columns are domain" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_warning_is_one_line_without_its_place_in_the_code(capsys):
    import warnings

    from discover.lab.cli.errors import warn_in_lines

    with warnings.catch_warnings():  # puts back what is replaced
        warnings.simplefilter("always")
        warn_in_lines()
        warnings.warn("skipped 1 of 9 images: a\x1b.png", stacklevel=1)
    assert capsys.readouterr().err == "discover: skipped 1 of 9 images: a\\x1b.png\n"
