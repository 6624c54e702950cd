"""A small run that the tests of running share, and how it is watched, stopped and compared."""

import signal

import jax
import numpy as np
import pytest

from discover.lab import records
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.build import build_data
from discover.lab.experiments.run.run import load_params, run
from discover.lab.training.errors import RunStopped
from discover.lab.training.progress import Quiet

PROGRAMS = {}  # compiled once for all files that use it: what is tested here is on the host
CONFIG = Config().override(
    [
        "model.name=logistic",
        "optimizer.name=discover",
        "optimizer.learning_rate=0.5",
        "batches.groups=2",
        "batches.group_size=8",
        "training.steps=20",
        "training.seeds=0,1",
        "training.steps_per_dispatch=5",
        "training.log_every=4",
        "training.eval_every=10",
        "training.checkpoint_every=5",
    ]
)
DATA = build_data(CONFIG)


def go(folder, *changes, **options):
    config = CONFIG.override(changes)
    return run(config, folder, programs=PROGRAMS, dataset=DATA, **options)


class Watcher(Quiet):
    """Remembers what it was told, and can do something at a step."""

    def __init__(self, at=None, action=None):
        self.at, self.action, self.messages, self.events = at, action, [], []

    def start(self, *, step, total_steps, members):
        self.events.append(("start", step))

    def advance(self, *, step, loss, accuracy, steps_per_second):
        self.events.append(("advance", step))
        assert np.isfinite(loss)
        assert 0 <= accuracy <= 1
        if self.at is not None and step >= self.at:
            self.at = None
            self.action()

    def evaluated(self, *, step, split, loss, accuracy):
        self.events.append(("evaluated", step, split))

    def message(self, text):
        self.messages.append(text)

    def finish(self, *, status):
        self.events.append(("finish", status))


def assert_same_run(folder, other):
    assert (folder / records.METRICS).read_bytes() == (other / records.METRICS).read_bytes()
    for a, b in zip(jax.tree.leaves(load_params(folder)[1]), jax.tree.leaves(load_params(other)[1])):
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def interrupted(folder, *changes, at=10):
    with pytest.raises(RunStopped):
        go(folder, *changes, progress=Watcher(at, lambda: signal.raise_signal(signal.SIGTERM)))
