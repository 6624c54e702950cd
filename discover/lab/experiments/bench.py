"""Steps per second of every optimizer, side by side in one run, with the floor beside them.

Absolute times on shared machines mean little, so every number that is compared comes from interleaved repeats: each
repeat times every candidate once, and a ratio is taken within a repeat. The steps are those of `discover train`
(drawn batches, gathered and augmented on the device), on random images of the preset's shape.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from discover import take_step
from discover.lab import records
from discover.lab.data import Dataset, Split
from discover.lab.experiments.config.config import Config, ConfigError
from discover.lab.experiments.run.build import (
    Member,
    build_members,
    build_network_for,
    build_plan,
    optimizer_factory,
    traced_names,
)
from discover.lab.experiments.run.prepare_examples import build_prepare
from discover.lab.experiments.run.programs import build_programs
from discover.lab.models import Network
from discover.lab.training.feed import draw_batches
from discover.lab.training.programs import Members, Programs
from discover.lab.training.step import StepBatch
from discover.registry import OPTIMIZERS, REFERENCE

HAND_WRITTEN = "optax loop"
LONGEST_DISPATCH = 20  # steps
_SHAPES = {"digits": ((8, 8, 1), 10), "cifar10": ((32, 32, 3), 10), "cifar100": ((32, 32, 3), 100)}
_OTHER = ((256, 256, 3), 1000)


@dataclass
class Candidate:
    """One optimizer in one setting, ready to be timed."""

    optimizer: str
    groups: int
    clusters: int
    run: Callable[[], None]  # one dispatch; returns when it is done
    compile_seconds: float
    state_bytes: int
    peak_bytes: int | None
    seconds: list[float] = field(default_factory=list)  # per step, one entry a repeat


def bench(
    config_for: Callable[[str], Config],
    optimizers: Sequence[str],
    *,
    groups: Sequence[int] | None = None,
    clusters: Sequence[int] | None = None,
    repeats: int = 7,
    seconds: float = 1.0,
    loop: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Times every optimizer in every setting, and the update on its own.

    Args:
        config_for: the configuration of an optimizer, `preset.config_for`.
        optimizers: names; momentum is timed in any case.
        groups: numbers of groups per batch for the clustered optimizers (None: the preset's). The batch stays as large.
        clusters: numbers of clusters, assigned at random (None: the preset's clusters).
        repeats: how often each candidate is timed, in turns.
        seconds: about how long momentum runs in each repeat.
        loop: time a hand-written optax loop beside momentum.
        say: told what is being done.

    Returns:
        A table that JSON can hold: `rows`, `updates`, `environment` and what was asked for. Ctrl-C in the middle of the
        repeats ends it with those that were whole, and without `updates`; later, with the updates that were timed.

    Raises:
        ConfigError: a number of groups that does not divide the batch.
    """
    base = config_for(REFERENCE)
    batch = base.batches.groups * base.batches.group_size
    groups = tuple(groups or (base.batches.groups,))
    for count in groups:
        if count < 1 or batch % count:
            raise ConfigError(f"groups must divide the batch of {batch} examples, got {count}")
    dataset = random_images(base, max((*(clusters or ()), 10)))
    settings = [(g, n) for n in (clusters or (None,)) for g in groups]
    entries = [OPTIMIZERS.find(name) for name in dict.fromkeys([REFERENCE, *optimizers])]
    plain = [entry.name for entry in entries if not entry.clustered]
    grouped = [entry.name for entry in entries if entry.clustered]

    steps = min(base.training.steps_per_dispatch, LONGEST_DISPATCH)
    candidates: list[Candidate] = []

    def add(label: str, make: Callable[[], Candidate]) -> None:
        say(f"compiling {label}")
        candidate = make()
        began = time.perf_counter()
        candidate.run()
        # A first look, in case the rest is stopped before it is done; it does not enter the table.
        first_look = 1e3 * (time.perf_counter() - began) / steps
        say(f"{label}: {first_look:.3g} ms a step at first, compiled in {candidate.compile_seconds:.0f} s")
        candidates.append(candidate)

    for name in plain:
        add(name, lambda name=name: _candidate(adjusted(config_for(name), batch, *settings[0]), dataset, steps))
    calls = _calls_in(seconds, candidates[0].run)
    if loop:
        add(HAND_WRITTEN, lambda: _hand_written(adjusted(base, batch, *settings[0]), dataset, steps))
    for g, n in settings:
        for name in grouped:
            label = f"{name}, {g} groups" + ("" if n is None else f", {n} clusters")
            config = adjusted(config_for(name), batch, g, n)
            add(label, lambda config=config: _candidate(config, dataset, steps))

    measured = _take_turns(candidates, repeats, calls, steps, say)
    flops = _operations(base, dataset, batch)
    rows = [_row(candidate, candidates[0], flops) for candidate in candidates]
    candidates.clear()  # what follows needs their memory
    for row in rows:
        setting = f"{row['optimizer']}, {row['groups']} groups"
        say(f"{setting}: {row['milliseconds']:.4g} ms a step, {row['ratio']:.3f} of {REFERENCE}'s steps per second")

    bandwidth, updates = None, []
    if measured == repeats:
        configs = [adjusted(base, batch, *settings[0])]
        configs += [adjusted(config_for(name), batch, g, n) for name in grouped[:1] for g, n in settings]
        try:
            bandwidth = _copy_bandwidth()
            for config in configs:
                say(f"timing the update of {config.optimizer.name} alone, {config.batches.groups} groups")
                updates.append(time_update(config, dataset, bandwidth, repeats))
        except KeyboardInterrupt:
            say(f"stopped: {len(updates)} of {len(configs)} updates were timed alone")
    return {
        "preset": base.name,
        "model": base.model.name,
        "dtype": base.model.dtype,
        "parameters": build_network_for(base, dataset).num_parameters,
        "batch": batch,
        "repeats": measured,
        "steps_per_repeat": steps * calls,
        "operations_per_step": flops,
        "bytes_per_second": bandwidth,
        "rows": rows,
        "updates": updates,
        "environment": records.environment([d.device_kind for d in jax.devices()], jax.default_backend()),
    }


def _take_turns(
    candidates: Sequence[Candidate], repeats: int, calls: int, steps: int, say: Callable[[str], None]
) -> int:
    """Times every candidate once in each repeat; returns how many repeats were whole when Ctrl-C ended it, or all."""
    measured = 0
    try:
        for measured in range(repeats):
            say(f"repeat {measured + 1} of {repeats}")
            for candidate in candidates:
                began = time.perf_counter()
                for _ in range(calls):
                    candidate.run()
                candidate.seconds.append((time.perf_counter() - began) / (steps * calls))
    except KeyboardInterrupt:
        if not measured:
            raise
        say(f"stopped: the table has {measured} of {repeats} repeats, and no updates alone")
        for candidate in candidates:
            del candidate.seconds[measured:]
        return measured
    return repeats


def prepare_candidates(config_for: Callable[[str], Config], wanted: Sequence[tuple[str, int]]) -> list[Candidate]:
    """(optimizer, number of groups) pairs, compiled and warm: for those who time them their own way."""
    base = config_for(REFERENCE)
    batch = base.batches.groups * base.batches.group_size
    dataset = random_images(base, 10)
    steps = min(base.training.steps_per_dispatch, LONGEST_DISPATCH)
    return [_candidate(adjusted(config_for(name), batch, groups, None), dataset, steps) for name, groups in wanted]


def adjusted(config: Config, batch: int, groups: int, clusters: int | None) -> Config:
    """The configuration with that many groups in a batch, and `random_images` for data."""
    values: dict[str, Any] = {"batches.groups": groups, "batches.group_size": batch // groups}
    values |= {"data.source": "npz", "data.path": "random", "data.label_noise": 0.0, "data.validation": 0.0}
    if clusters is not None:
        values |= {"clusters.by": "random", "clusters.number": clusters}
    elif config.clusters.by not in ("classes", "augmentations", "random"):
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
    members = [Member(0)]
    plan = build_plan(config, dataset, 0)
    programs = build_programs(config, dataset, build_network_for(config, dataset), plan.probs)
    arguments, _ = build_members(config, members, traced_names(config, members), 1_000_000)
    return PreparedStep(programs, arguments, draw_batches([plan], 0, steps, steps), len(plan.probs))


def _candidate(config: Config, dataset: Dataset, steps: int) -> Candidate:
    prepared = prepare_step(config, dataset, steps)
    programs, (arguments, batches) = prepared.programs, jax.device_put((prepared.members, prepared.batches))
    images = jax.device_put(dataset.train.images)
    state = programs.start(arguments)
    compiled = programs.prepare_advance(state, arguments, batches, images)
    held = [state]

    def run() -> None:
        held[0], _ = programs.advance(held[0], arguments, batches, images, 0, steps)
        jax.block_until_ready(held[0].params)

    run()
    state_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(held[0].opt_state))
    return Candidate(
        config.optimizer.name,
        config.batches.groups,
        prepared.num_clusters,
        run,
        programs.compile_seconds,
        state_bytes,
        _peak_bytes(compiled),
    )


def _hand_written(config: Config, dataset: Dataset, steps: int) -> Candidate:
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

    run()
    return Candidate(HAND_WRITTEN, config.batches.groups, 1, run, compile_seconds, state_bytes, _peak_bytes(compiled))


def _calls_in(seconds: float, run: Callable[[], None]) -> int:
    began = time.perf_counter()
    run()
    return max(1, round(seconds / (time.perf_counter() - began)))


def _row(candidate: Candidate, baseline: Candidate, flops: float) -> dict[str, Any]:
    ratios = [ours / own for own, ours in zip(candidate.seconds, baseline.seconds)]
    typical = median(candidate.seconds)
    return {
        "optimizer": candidate.optimizer,
        "groups": candidate.groups,
        "clusters": candidate.clusters,
        "steps_per_second": 1 / typical,
        "slowest": 1 / max(candidate.seconds),
        "fastest": 1 / min(candidate.seconds),
        "milliseconds": 1e3 * typical,
        "ratio": median(ratios),
        "ratio_lowest": min(ratios),
        "ratio_highest": max(ratios),
        "compile_seconds": candidate.compile_seconds,
        "state_bytes": candidate.state_bytes,
        "peak_bytes": candidate.peak_bytes,
        "operations_per_second": flops / typical,
    }


def _operations(config: Config, dataset: Dataset, batch: int) -> float:
    """Floating-point operations of one gradient of the whole batch, as the uncompiled program states them."""
    network: Network = build_network_for(config.with_values({"model.convolution": "lax"}), dataset)
    shape = dataset.example_shape if config.data.crop_size is None else (config.data.crop_size,) * 2 + (3,)
    params = jax.eval_shape(network.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch, *shape), jnp.float32)

    def loss(params, x):
        return jnp.mean(network.apply(params, x))

    return float(count_operations(jax.make_jaxpr(jax.grad(loss))(params, x).jaxpr))


def count_operations(jaxpr: Any) -> int:
    """Multiplications and additions in the matrix products and convolutions of a program, those inside others too."""
    total = 0
    for equation in jaxpr.eqns:
        name, sizes = equation.primitive.name, [np.shape(v.aval) for v in equation.outvars[:1]]
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += 2 * math.prod(sizes[0]) * math.prod(equation.invars[0].aval.shape[d] for d in contracted)
        elif name == "conv_general_dilated":
            filters, dims = equation.invars[1].aval.shape, equation.params["dimension_numbers"]
            dilations = (*equation.params["lhs_dilation"], 1)  # zeros between the numbers are not multiplied
            reached = math.prod(filters[d] for d in dims.rhs_spec[1:])
            total += 2 * math.prod(sizes[0]) * reached // math.prod(dilations)
        is_program = lambda value: hasattr(value, "eqns") or hasattr(value, "jaxpr")  # noqa: E731
        for inner in filter(is_program, jax.tree.leaves(equation.params, is_leaf=is_program)):
            total += count_operations(getattr(inner, "jaxpr", inner))
    return total


def time_update(config: Config, dataset: Dataset, bandwidth: float, repeats: int) -> dict[str, Any]:
    """The optimizer's update on given gradients, against the time its memory traffic needs at the least."""
    network = build_network_for(config, dataset)
    plan = build_plan(config, dataset, 0)
    members = [Member(0)]
    arguments, _ = build_members(config, members, traced_names(config, members), 1_000_000)
    hyper = jax.tree.map(lambda value: jnp.asarray(value[0]), arguments.hyper)
    make = optimizer_factory(config, plan.probs)
    hyper.pop("l2", None)
    clustered = config.optimizer.entry.clustered
    groups = config.batches.groups if clustered else 1
    half = config.model.dtype != "float32"
    params = jax.jit(network.init)(jax.random.key(0))
    key = jax.random.key(1)
    grads = jax.tree.map(
        lambda p: jax.random.normal(key, (groups, *p.shape), config.model.dtype if half and p.ndim > 1 else p.dtype),
        params,
    )
    ids = jax.device_put(plan.batch(0).cluster_ids[:groups])

    def update(_, held, grads, ids):
        params, state = held
        return take_step(make(hyper), grads, state, params, cluster_ids=ids)

    held = params, jax.jit(lambda p: make(hyper).init(p))(params)
    seconds = _seconds_in_a_loop(update, held, grads, ids, repeats=repeats)
    touched = len(np.unique(plan.batch(0).cluster_ids))
    state_bytes = _touched_bytes(config, hyper, params, len(plan.probs), touched)
    floor_bytes = sum(g.nbytes for g in jax.tree.leaves(grads)) + 2 * sum(p.nbytes for p in jax.tree.leaves(params))
    floor_bytes += 2 * state_bytes
    return {
        "optimizer": config.optimizer.name,
        "groups": groups,
        "clusters": len(plan.probs),
        "milliseconds": 1e3 * median(seconds),
        "floor_bytes": floor_bytes,
        "floor_milliseconds": 1e3 * floor_bytes / bandwidth,
        "times_floor": median(seconds) * bandwidth / floor_bytes,
        "bytes_per_second": floor_bytes / median(seconds),
    }


def _touched_bytes(config: Config, hyper: Any, params: Any, num_clusters: int, touched: int) -> int:
    """Bytes of the optimizer's state that a step reads: what there is once, and that of the clusters in the batch."""

    def state_bytes(number: int) -> int:
        tx = optimizer_factory(config, [1 / number] * number)(hyper)
        leaves = jax.tree.leaves(jax.eval_shape(tx.init, params))
        return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves if leaf.ndim)

    each = (state_bytes(2 * num_clusters) - state_bytes(num_clusters)) // num_clusters
    return state_bytes(num_clusters) - (num_clusters - touched) * each


def _seconds_in_a_loop(body: Callable[..., Any], held: Any, *others: Any, repeats: int) -> list[float]:
    """Seconds of one `held = body(i, held, *others)`, each from many in one program: a call has a price too."""
    times = 10 if jax.default_backend() == "cpu" else 300  # on a GPU an update is over within a millisecond

    def loop(held, *others):
        return jax.lax.fori_loop(0, times, lambda i, now: body(i, now, *others), held)

    compiled = jax.jit(loop, donate_argnums=0).lower(held, *others).compile()
    seconds = []
    for number in range(repeats + 1):
        began = time.perf_counter()
        held = jax.block_until_ready(compiled(held, *others))
        if number:  # the first one warms up
            seconds.append((time.perf_counter() - began) / times)
    return seconds


def _copy_bandwidth() -> float:
    """Bytes read and written per second by a large copy on the device."""
    source = jnp.zeros(2**28 if jax.default_backend() != "cpu" else 2**25, jnp.float32)
    moved = 2 * source.nbytes
    return moved / min(_seconds_in_a_loop(lambda i, x: x + i, source, repeats=7))


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
