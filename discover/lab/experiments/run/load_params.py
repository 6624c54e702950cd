"""Reads back what a run learned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discover.lab import records
from discover.lab.data import Dataset
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.build import (
    Member,
    build_data,
    build_members,
    build_network_for,
    build_plan,
    in_parts,
    total_steps,
    traced_names,
)
from discover.lab.experiments.run.programs import build_programs
from discover.lab.training.checkpoint import Checkpoints, DamagedCheckpoint
from discover.lab.training.devices import Devices
from discover.lab.training.errors import RunError
from discover.registry import choose


def load_params(out_dir: Path | str, *, which: str = "last", dataset: Dataset | None = None) -> tuple[Config, Any]:
    """Reads the parameters that a run would be evaluated at (IGT's true ones).

    Args:
        out_dir: a run directory with checkpoints.
        which: `last`, or `best` (by accuracy on the validation split, where there is one).
        dataset: with the shape and classes that it was trained on, where ``config.data`` does not load them here.

    Returns:
        The configuration, and the parameters as nested dictionaries with leaves [M, ...], one row per member.

    Raises:
        RunError: there is no run, or it has no (whole) checkpoint.
    """
    path = Path(out_dir)
    choose("checkpoint", which, ("last", "best"))
    if not (path / records.CONFIG).exists():
        raise RunError(f"{path} holds no run")
    config = Config.from_dict(records.read_json(path / records.CONFIG))
    summary = records.read_summary(path) or {}
    everyone = [Member(m["seed"], m["hyperparameters"]) for m in summary.get("members", [])]
    parts = sorted((path / records.CHECKPOINTS).glob("part-*"), key=lambda p: int(p.name.partition("-")[2]))
    if not parts or not everyone:
        raise RunError(f"{path} has no checkpoints")
    names = traced_names(config, everyone)
    dataset, devices = dataset if dataset is not None else build_data(config), Devices()
    steps, network = total_steps(config, dataset), build_network_for(config, dataset)
    members = in_parts(config, everyone, network.num_parameters)
    if len(parts) < len(members):
        raise RunError(f"{path} has checkpoints of {len(parts)} of its {len(members)} parts: resume it first")
    given = config.batches.given
    # What is given names every cluster, also those whose examples are with other workers.
    probs = (np.bincount(given) / len(given)).tolist() if given else build_plan(config, dataset, everyone[0].seed).probs
    programs = build_programs(config, dataset, network, probs)
    found = []
    for some, folder in zip(members, parts):
        arrays = devices.put_everywhere(build_members(config, some, steps, names)[0])
        store = Checkpoints(folder, keep=config.training.keep)
        try:
            step = store.best_step() if which == "best" else (store.steps() or [None])[-1]
            if step is None:
                raise RunError(f"{path} has no {which} checkpoint")
            state, _ = store.restore(step, devices.like(programs.abstract_state(arrays)))
        except DamagedCheckpoint as error:
            raise RunError(f"{path}: {error}") from None
        finally:
            store.close()
        found.append(programs.eval_params(state))
    return config, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *found)
