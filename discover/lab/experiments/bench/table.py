"""Steps per second of every optimizer, side by side in one run, with the floor beside them.

Absolute times on shared machines mean little, so every number that is compared comes from interleaved repeats: each
repeat times every candidate once, and a ratio is taken within a repeat. The steps are those of `discover train`
(drawn batches, gathered and augmented on the device), on random images of the preset's shape.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import jax

from discover.lab import records
from discover.lab.experiments.bench.candidates import (
    HAND_WRITTEN,
    LONGEST_DISPATCH,
    Candidate,
    adjusted,
    operations_per_step,
    prepare_candidate,
    prepare_hand_written,
    random_images,
)
from discover.lab.experiments.bench.update import copy_bandwidth, time_update
from discover.lab.experiments.config.config import Config, ConfigError
from discover.lab.experiments.run.build import build_network_for
from discover.registry import OPTIMIZERS, REFERENCE


def bench(
    config_for: Callable[[str], Config],
    optimizers: Sequence[str],
    *,
    groups: Sequence[int] | None = None,
    clusters: Sequence[int] | None = None,
    repeats: int = 7,
    seconds: float = 1.0,
    loop: bool = True,
    update: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Times every optimizer in every setting, and the update on its own.

    Args:
        config_for: the configuration of an optimizer, `preset.config_for`.
        optimizers: names, or names with values that differ from the preset's (`discover_muon+damping=0.1`); momentum is
            timed in any case.
        groups: numbers of groups per batch for the clustered optimizers (None: the preset's). The batch stays as large.
        clusters: numbers of clusters, assigned at random (None: the preset's clusters).
        repeats: how often each candidate is timed, in turns.
        seconds: about how long momentum runs in each repeat.
        loop: time a hand-written optax loop beside momentum.
        update: time the update alone, too.
        say: told what is being done.

    Returns:
        A table that JSON can hold: `rows`, `updates`, `environment` and what was asked for. Ctrl-C in the middle of the
        repeats ends it with those that were whole, and without `updates`; later, with the updates that were timed.
    """
    base = config_for(REFERENCE)
    batch = base.batches.groups * base.batches.group_size
    groups = tuple(groups or (base.batches.groups,))
    for count in groups:
        if count < 1 or batch % count:
            raise ConfigError(f"groups must divide the batch of {batch} examples, got {count}")
    dataset = random_images(base, max((*(clusters or ()), 10)))
    settings = [(g, n) for n in (clusters or (None,)) for g in groups]
    steps = min(base.training.steps_per_dispatch, LONGEST_DISPATCH)

    def config_of(text: str, g: int, n: int | None) -> Config:
        name, *values = text.split("+")
        return adjusted(config_for(name).override([f"optimizer.{value}" for value in values]), batch, g, n)

    wanted = dict.fromkeys([REFERENCE, *optimizers])
    plain = [text for text in wanted if not OPTIMIZERS.find(text.partition("+")[0]).clustered]
    grouped = [text for text in wanted if text not in plain]
    jobs: list[tuple[str, Callable[[], Candidate]]] = []

    def add(text: str, g: int, n: int | None, note: str = "") -> None:
        config, variant = config_of(text, g, n), text.partition("+")[2]
        jobs.append((text + note, lambda: prepare_candidate(config, dataset, steps, variant)))

    for text in plain:
        add(text, *settings[0])
    if loop:
        config = adjusted(base, batch, *settings[0])
        jobs.append((HAND_WRITTEN, lambda: prepare_hand_written(config, dataset, steps)))
    for g, n in settings:
        for text in grouped:
            add(text, g, n, f", {g} groups" + ("" if n is None else f", {n} clusters"))
    candidates = _prepare(jobs, steps, say)
    calls = _calls_in(seconds, candidates[0].run)

    measured = _take_turns(candidates, repeats, calls, steps, say)
    flops = operations_per_step(base, dataset, batch)
    plain_ones = {c.optimizer: c for c in candidates[: len(plain)] if not c.variant}
    rows = [_row(candidate, candidates[0], _own_baseline(candidate, plain_ones), flops) for candidate in candidates]
    candidates.clear()  # what follows needs their memory
    for row in rows:
        setting = f"{row['optimizer']} {row['variant']}".strip() + f", {row['groups']} groups"
        say(f"{setting}: {row['milliseconds']:.4g} ms a step, {row['ratio']:.3f} of {REFERENCE}'s steps per second")

    bandwidth, updates = None, []
    if update and measured == repeats:
        configs = [adjusted(base, batch, *settings[0])]
        configs += [config_of(text, g, n) for text in grouped[:1] for g, n in settings]
        try:
            bandwidth = copy_bandwidth()
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


def _prepare(
    jobs: Sequence[tuple[str, Callable[[], Candidate]]], steps: int, say: Callable[[str], None]
) -> list[Candidate]:
    """All candidates, compiled and warm. One after the other: side by side takes as long, and nothing is seen of it."""
    candidates = []
    for label, make in jobs:
        say(f"compiling {label}")
        candidate = make()
        candidate.run()
        began = time.perf_counter()
        candidate.run()
        # A first look, in case the rest is stopped before it is done; it does not enter the table.
        first_look = 1e3 * (time.perf_counter() - began) / steps
        say(f"{label}: {first_look:.3g} ms a step at first, compiled in {candidate.compile_seconds:.0f} s")
        candidates.append(candidate)
    return candidates


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


def _calls_in(seconds: float, run: Callable[[], None]) -> int:
    began = time.perf_counter()
    run()
    return max(1, round(seconds / (time.perf_counter() - began)))


def _own_baseline(candidate: Candidate, plain: dict[str, Candidate]) -> Candidate | None:
    """The plain optimizer that this one is compared with, where it was timed and is not what all are compared with."""
    if candidate.optimizer == HAND_WRITTEN:
        return None
    name = OPTIMIZERS.find(candidate.optimizer).baseline
    return None if name is None or name == REFERENCE else plain.get(name)


def _ratios(candidate: Candidate, baseline: Candidate) -> list[float]:
    return [its / own for own, its in zip(candidate.seconds, baseline.seconds)]


def _row(candidate: Candidate, reference: Candidate, baseline: Candidate | None, flops: float) -> dict[str, Any]:
    ratios = _ratios(candidate, reference)
    typical = median(candidate.seconds)
    return {
        "optimizer": candidate.optimizer,
        "variant": candidate.variant,
        "groups": candidate.groups,
        "clusters": candidate.clusters,
        "steps_per_second": 1 / typical,
        "slowest": 1 / max(candidate.seconds),
        "fastest": 1 / min(candidate.seconds),
        "milliseconds": 1e3 * typical,
        "ratio": median(ratios),
        "ratio_lowest": min(ratios),
        "ratio_highest": max(ratios),
        "baseline": None if baseline is None else baseline.optimizer,
        "baseline_ratio": None if baseline is None else median(_ratios(candidate, baseline)),
        "compile_seconds": candidate.compile_seconds,
        "state_bytes": candidate.state_bytes,
        "peak_bytes": candidate.peak_bytes,
        "operations_per_second": flops / typical,
    }
