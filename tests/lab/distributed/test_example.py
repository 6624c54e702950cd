"""The example of data that lives with the worker, run as a reader would: real processes, started by the example."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests import one_device

ROOT = Path(__file__).parents[3]
SCRIPT = ROOT / "examples" / "one_domain_per_worker.py"
LINE = re.compile(r"^(momentum|discover) +([\d.]+) % ± ([\d.]+) .*held-out digits chose ([\d.]+)\)$", re.MULTILINE)


def run_example(*options):
    """What the example prints: for each optimizer its accuracy in percent and its learning rate."""
    command = [sys.executable, str(SCRIPT), *options]
    ended = subprocess.run(
        command, env=one_device.environment(), capture_output=True, text=True, timeout=240, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return {name: (float(mean), float(rate)) for name, mean, _, rate in LINE.findall(ended.stdout)}


@pytest.mark.slow
def test_two_workers_with_their_own_digits_learn_those_of_both():
    found = run_example("--workers", "2", "--steps", "50", "--rates", "0.1", "--seeds", "1")
    assert set(found) == {"momentum", "discover"}
    assert found["discover"][1] == 0.1
    assert found["discover"][0] > 20  # knowing nothing gives 10 %; 50 steps are few


@pytest.mark.slow
def test_with_two_workers_discover_is_far_better_than_momentum():
    found = run_example("--workers", "2")
    assert found["discover"][0] > found["momentum"][0] + 10


@pytest.mark.parametrize("workers", [1, 2, 3, 10])
def test_every_digit_belongs_to_one_worker_who_reads_its_own_classes_only(workers):
    example = runpy.run_path(str(SCRIPT))
    order = np.reshape(example["who_reads_what"](workers, 400), (-1, workers))
    assert len(order) == 400
    total = 0
    for worker in range(workers):
        own = example["own_data"](worker, workers)
        classes = set(range(worker, 10, workers))
        assert set(order[:, worker]) == classes
        for split in (own.train, own.validation, own.test):
            assert set(split.labels) == classes
            total += len(split)
    assert total == 1797


@pytest.mark.parametrize("wrong", [["--steps", "49"], ["--workers", "11"], ["--workers", "0"]])
def test_options_that_cannot_work_are_refused_in_one_line(wrong, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *wrong])
    with pytest.raises(SystemExit):
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert f"got {wrong[1]}" in capsys.readouterr().err.splitlines()[-1]
