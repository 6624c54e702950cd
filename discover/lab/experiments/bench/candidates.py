"""What is timed: the steps of `discover train`, one optimizer in one setting, compiled, on random images."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from discover.lab.data import Dataset, Split
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.build import Member, build_members, build_network_for, build_plan
from discover.lab.experiments.run.prepare_examples import build_prepare
from discover.lab.experiments.run.programs import build_programs
from discover.lab.training.programs import Members, Programs
from discover.lab.training.step import StepBatch, draw_batches

HAND_WRITTEN = "optax loop"
LONGEST_DISPATCH = 20  # steps
_SHAPES = {"digits": ((8, 8, 1), 10), "cifar10": ((32, 32, 3), 10), "cifar100": ((32, 32, 3), 100)}
_OTHER = ((256, 256, 3), 1000)


@dataclass
class Candidate:
    """One optimizer in one setting, ready to be timed."""

    optimizer: str
    variant: str  # what differs from its defaults, as in `damping=0.1`
    groups: int
    clusters: int
    run: Callable[[], None]  # one dispatch; returns when it is done
    compile_seconds: float
    state_bytes: int
    peak_bytes: int | None
    seconds: list[float] = field(default_factory=list)  # per step, one entry a repeat


def adjusted(config: Config, batch: int, groups: int, clusters: int | None) -> Config:
    """The configuration with that many groups in a batch, and `random_images` for data."""
    values: dict[str, Any] = {"batches.groups": groups, "batches.group_size": batch // groups}
    values |= {"data.source": "npz", "data.path": "random", "data.label_noise": 0.0, "data.validation": 0.0}
    if clusters is not None:
        values |= {"clusters.by": "random", "clusters.number": clusters}
    elif not config.clusters.entry.any_examples:
        values["clusters.by"] = "classes"
    return config.with_values(values)


def random_images(config: Config, at_least: int) -> Dataset:
    """Random pictures of the shape that the configuration's data have, enough for ``at_least`` clusters."""
    shape, num_classes = _SHAPES.get(config.data.source, _OTHER)
    count = max(4 * at_least, 1024)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, size=(count, *shape), dtype=np.uint8)
    split = Split(images, np.arange(count, dtype=np.int32) % num_classes)
    return Dataset("random", split, split, num_classes, tuple(str(n) for n in range(num_classes)))


class PreparedStep(NamedTuple):
    """The programs of `discover train`, and the arguments of one call of `advance`, on the host."""

    programs: Programs
    members: Members
    batches: StepBatch
    num_clusters: int


def prepare_step(config: Config, dataset: Dataset, steps: int) -> PreparedStep:
    """What one dispatch of ``steps`` steps needs."""
    config = config.with_values({"training.steps_per_dispatch": steps, "training.steps": 1_000_000})
    plan = build_plan(config, dataset, 0)
    programs = build_programs(config, dataset, build_network_for(config, dataset), plan.probs)
    arguments, _ = build_members(config, [Member(0)], 1_000_000)
    return PreparedStep(programs, arguments, draw_batches([plan], 0, steps, steps), len(plan.probs))


def prepare_candidate(config: Config, dataset: Dataset, steps: int, variant: str = "") -> Candidate:
    prepared = prepare_step(config, dataset, steps)
    programs, (arguments, batches) = prepared.programs, jax.device_put((prepared.members, prepared.batches))
    images = jax.device_put(dataset.train.images)
    state = programs.start(arguments)
    compiled = programs.prepare_advance(state, arguments, batches, images)
    held = [state]

    def run() -> None:
        held[0], _ = programs.advance(held[0], arguments, batches, images, 0, steps)
        jax.block_until_ready(held[0].params)

    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state.opt_state))
    return Candidate(
        config.optimizer.name,
        variant,
        config.batches.groups,
        prepared.num_clusters,
        run,
        programs.compile_seconds,
        state_bytes,
        _peak_bytes(compiled),
    )


def prepare_hand_written(config: Config, dataset: Dataset, steps: int) -> Candidate:
    """What somebody without this library would write: one gradient of the batch, `optax.sgd`, a Python loop."""
    network, (prepare, _) = build_network_for(config, dataset), build_prepare(config, dataset)
    settings = config.optimizer
    beta, rate, l2 = settings.get("beta") or 0.9, settings.learning_rate, settings.get("l2") or 0.0
    tx = optax.chain(optax.add_decayed_weights(l2), optax.sgd(rate * (1 - beta), momentum=beta))
    size = config.batches.groups * config.batches.group_size
    images, labels = jax.device_put(dataset.train.images[:size]), jax.device_put(dataset.train.labels[:size])

    def loss(params, key):
        augment, dropout = jax.random.split(key)
        x, targets = prepare(augment, images, labels, jnp.int32(0))
        return optax.softmax_cross_entropy(network.apply(params, x, dropout), targets).mean()

    def step(params, state, key):
        value, grads = jax.value_and_grad(loss)(params, key)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    params = jax.jit(network.init)(jax.random.key(0))
    state, keys = jax.jit(tx.init)(params), jax.random.split(jax.random.key(1), steps)
    began = time.perf_counter()
    compiled = jax.jit(step, donate_argnums=(0, 1)).lower(params, state, keys[0]).compile()
    compile_seconds = time.perf_counter() - began
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    held = [params, state]

    def run() -> None:
        for key in keys:
            held[0], held[1], _ = compiled(*held, key)
        jax.block_until_ready(held)

    return Candidate(
        HAND_WRITTEN, "", config.batches.groups, 1, run, compile_seconds, state_bytes, _peak_bytes(compiled)
    )


def operations_per_step(config: Config, dataset: Dataset, batch: int) -> float:
    """Floating-point operations of one gradient of the whole batch, as XLA counts them before it optimizes.

    For a CPU, whatever computes: of the backends only XLA's own counts, and the arithmetic is the same. 0 where JAX was
    told to leave the CPU out (`JAX_PLATFORMS=cuda`).
    """
    try:
        cpu = jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0])
    except RuntimeError:
        return 0.0
    network = build_network_for(config.with_values({"model.convolution": "lax"}), dataset)
    shape = dataset.example_shape if config.data.crop_size is None else (config.data.crop_size,) * 2 + (3,)
    params = jax.eval_shape(network.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch, *shape), jnp.float32, sharding=cpu)
    gradient = jax.jit(jax.value_and_grad(lambda params, x: jnp.mean(network.apply(params, x))))
    return float((gradient.lower(params, x).cost_analysis() or {}).get("flops", 0.0))


def _peak_bytes(compiled: Any) -> int | None:
    memory = compiled.memory_analysis()
    if memory is None:
        return None
    return (
        memory.temp_size_in_bytes
        + memory.argument_size_in_bytes
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
    )
