"""Every argument of every optimizer can be set in a configuration, and trains; with several seeds side by side too."""

from __future__ import annotations

import pytest

from discover.lab.experiments.presets.presets import get_preset
from discover.lab.experiments.run.run import run
from discover.registry import OPTIMIZERS

VALUES = {
    "alpha": "0.1", "alpha_n": "0.5", "beta": "0.8", "beta1": "0.8", "beta2": "0.9", "eps": "1e-6", "l2": "0.001",
    "nu": "0.5", "tail_fraction": "2", "weight_decay": "0.01", "damping": "0.1", "damping_clusters": "3",
    "rate": "per_visit", "buffer_dtype": "int8", "buffers": "host", "matrix_dtype": "float32",
    "estimate_probs": "true", "skip_nonfinite": "true",
}  # fmt: skip
NOT_TOGETHER = {"buffers": {"damping", "damping_clusters"}}
"""Damping reads all buffers, which cannot be on the host then."""
SMALL = [
    "training.steps=2", "training.steps_per_dispatch=2", "training.eval_every=0", "training.seeds=0,1", "model.width=8",
]  # fmt: skip

PROGRAMS: dict = {}


def sets_of_arguments():
    for name in OPTIMIZERS:
        arguments = set(OPTIMIZERS.find(name).types)
        yield name, arguments - NOT_TOGETHER.keys()
        for one in arguments & NOT_TOGETHER.keys():
            yield name, arguments - NOT_TOGETHER[one]


CASES = [
    pytest.param(name, arguments, marks=[] if name == "discover_muon" else pytest.mark.slow, id=f"{name}-{number}")
    for number, (name, arguments) in enumerate(sets_of_arguments())
]


@pytest.mark.parametrize(("name", "arguments"), CASES)
def test_all_arguments_of_an_optimizer_train_two_seeds(name, arguments):
    chosen = [f"optimizer.{argument}={VALUES[argument]}" for argument in sorted(arguments)]
    config = get_preset("digits").config_for(name).override([*SMALL, *chosen]).check()
    assert set(config.optimizer.arguments) >= arguments
    finished = run(config, None, programs=PROGRAMS)
    assert [member.diverged_at for member in finished.members] == [None, None]
