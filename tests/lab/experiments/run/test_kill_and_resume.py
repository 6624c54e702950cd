"""A run that is killed, whenever and however often, ends as if it had never been."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from discover.lab.experiments.run.run import load_params
from discover.registry import OPTIMIZERS
from tests import one_device

HARNESS = Path(__file__).with_name("kill_harness.py")


def run_harness(folder, seed, kills_per_optimizer, optimizers):
    done = subprocess.run(
        [sys.executable, str(HARNESS), str(folder), str(seed), str(kills_per_optimizer), *optimizers],
        env=one_device.environment(JAX_COMPILATION_CACHE_DIR=str(folder / "cache")),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "report.json").read_text())


def assert_equal_to_the_last_bit(folder, optimizers):
    for optimizer in optimizers:
        unbroken, broken = folder / "unbroken" / optimizer, folder / "broken" / optimizer
        assert (broken / "metrics.jsonl").read_bytes() == (unbroken / "metrics.jsonl").read_bytes(), optimizer
        expected, found = load_params(unbroken)[1], load_params(broken)[1]
        assert jax.tree.structure(expected) == jax.tree.structure(found)
        for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(found)):
            assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), optimizer
        finals = [json.loads((path / "summary.json").read_text()) for path in (unbroken, broken)]
        assert finals[0]["final"] == finals[1]["final"]
        assert finals[1]["status"] == "finished"


def assert_was_killed(report, optimizers, at_least):
    killed = [kill for kill in report["kills"] if kill[3] == -signal.SIGKILL]
    assert len(killed) >= at_least
    for optimizer in optimizers:
        assert any(kill[0] == optimizer for kill in killed), f"{optimizer} was never killed"


def test_a_run_killed_and_resumed_ends_bit_identical(tmp_path):
    report = run_harness(tmp_path, 0, 1, ["discover"])
    assert_was_killed(report, ["discover"], 1)
    assert_equal_to_the_last_bit(tmp_path, ["discover"])
    assert not list((tmp_path / "broken").rglob(".lock"))


@pytest.mark.slow
def test_every_optimizer_killed_and_resumed_ends_bit_identical(tmp_path):
    report = run_harness(tmp_path, 1, 8, [])
    assert_was_killed(report, OPTIMIZERS, 80)
    assert report["unfinished_writes"] >= 3, "no kill fell into the writing of a checkpoint"
    assert_equal_to_the_last_bit(tmp_path, OPTIMIZERS)
