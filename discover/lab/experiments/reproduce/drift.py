r"""How far the running mean ḡ has come from what it should be, Σ_n p_n g_n, while a network trains.

The invariant ḡ = Σ p_n g_n is what makes the step unbiased. The library's rule keeps it by construction, to rounding;
the printed Algorithm 1 keeps it for one group in a batch (with α_n = α/p_n) and loses it for several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, MutableMapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discover import DiscoverState
from discover.lab.data import Dataset
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.build import (
    Member,
    build_members,
    build_network_for,
    build_plan,
    total_steps,
    traced_names,
)
from discover.lab.experiments.run.programs import shared_programs
from discover.lab.training.devices import Devices
from discover.lab.training.step import draw_batches
from discover.quantized import all_values


def measure_drift(
    config: Config,
    dataset: Dataset,
    *,
    programs: MutableMapping[str, Any] | None = None,
    check_time: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Trains one seed of a Discover optimizer and measures the drift after every dispatch.

    Returns:
        ``[{"step", "loss", "drift"}, ...]``: mean training loss since the last line, and ‖ḡ − Σ p_n g_n‖/‖Σ p_n g_n‖.
        It ends early where the loss is no longer finite.
    """
    member = Member(config.training.seeds[0])
    names = traced_names(config, [member])
    steps = total_steps(config, dataset)
    plan = build_plan(config, dataset, member.seed)
    devices, shared = Devices(), {} if programs is None else programs
    network = build_network_for(config, dataset)
    own = shared_programs(shared, config, dataset, network, names, plan.probs, devices)
    members = devices.put_everywhere(build_members(config, [member], steps)[0])
    images = devices.put_training_examples(dataset.train.images)
    measure = jax.jit(lambda opt_state: drift_of(opt_state, plan.probs))
    state, lines = own.start(members), []
    size = own.steps_per_dispatch
    for first in range(0, steps, size):
        check_time()
        count = min(size, steps - first)
        batches = devices.put_batches(draw_batches([plan], first, count, size), dataset.train.images)
        state, metrics = own.advance(state, members, batches, images, first, count)
        loss = float(np.mean(np.asarray(metrics.loss)[:count]))
        drift = float(measure(jax.tree.map(lambda x: x[0], state.opt_state)))
        lines.append({"step": first + count, "loss": loss, "drift": drift})
        if not math.isfinite(loss):
            break
    return lines


def drift_of(opt_state: Any, probs: Any) -> jax.Array:
    """‖ḡ − Σ_n p_n g_n‖/‖Σ_n p_n g_n‖ of an optimizer's state, over all parameters."""
    found = [x for x in jax.tree.leaves(opt_state, is_leaf=_is_state) if _is_state(x)]
    if len(found) != 1:
        raise ValueError(f"expected one state with a buffer per cluster, found {len(found)}")
    weights = jnp.asarray(probs, jnp.float32)
    means = jax.tree.leaves(found[0].mean)
    buffers = jax.tree.leaves(all_values(found[0].buffers, found[0].mean))
    sums = [jnp.tensordot(weights, b.astype(jnp.float32), axes=1) for b in buffers]
    apart = sum(jnp.sum((mean - total) ** 2) for mean, total in zip(means, sums))
    size = sum(jnp.sum(total**2) for total in sums)
    return jnp.sqrt(apart / size)


def _is_state(x: Any) -> bool:
    return isinstance(x, DiscoverState)
