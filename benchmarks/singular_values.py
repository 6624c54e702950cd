"""Singular values of one weight matrix's step when a batch holds one class: what each stage does to them.

    python benchmarks/singular_values.py docs/figures/singular-values

writes singular-values.png, .svg and .json. Digits and the network of the preset `digits`, its batches, trained by
Discover before Muon; halfway every stage is asked for its step from the gradients so far. Seconds on a CPU.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

import discover
from discover.lab.data import load
from discover.lab.models import build_network
from discover.lab.report.plotting import save_figure, set_title, styled

SEEDS, STEPS, SIZE, RATE, KAPPA, LEAST = 5, 100, 32, 0.03, 0.1, 1e-3
CLASSES = discover.Clusters.uniform(10)
STAGES: dict[str, tuple[str, str, Any]] = {  # each with learning rate 1, so that its update is its step
    "gradient": ("gradient of the batch", "#767676", discover.sgd(1.0)),
    "momentum": ("momentum", "#0072B2", discover.qhm(1.0, beta=0.95, nu=0.95)),
    "discover": ("Discover", "#D55E00", discover.discover(1.0, CLASSES)),
    "damped": ("Discover, damped", "#A8510A", discover.discover(1.0, CLASSES, damping=KAPPA)),
    "momentum_muon": ("momentum, then Muon", "#117A65", discover.muon(1.0)),
    "discover_muon": ("damped, then Muon", "#C2123A", discover.discover_muon(1.0, CLASSES, damping=KAPPA)),
}


def singular_values() -> dict[str, np.ndarray]:
    """By stage those of the second layer's step [seeds, 64], after half of a training."""
    digits = load("digits", test_fraction=0.36).train
    images = jnp.asarray(digits.images.reshape(len(digits), -1), jnp.float32) / digits.images.max()
    labels, members = jnp.asarray(digits.labels), [np.flatnonzero(digits.labels == one) for one in range(10)]
    members = jnp.asarray(np.stack([one[: min(map(len, members))] for one in members]))
    network = build_network("mlp", images.shape[1:], 10, depth=2, width=64)
    trainer = discover.discover_muon(optax.cosine_decay_schedule(RATE, 2 * STEPS), CLASSES)

    def loss(params: Any, rows: Any) -> Any:
        logits = network.apply(params, images[rows])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels[rows]).mean()

    def steps_of(seed: Any) -> dict[str, Any]:
        key, params = jax.random.key(1000 + seed), network.init(jax.random.key(seed))

        def step(carry: Any, number: Any) -> Any:
            params, state, stages, _ = carry
            class_key, row_key = jax.random.split(jax.random.fold_in(key, number))
            one = jax.random.randint(class_key, (), 0, len(members))
            rows = members[one, jax.random.randint(row_key, (1, SIZE), 0, members.shape[1])]
            _, grads = discover.group_value_and_grad(loss)(params, rows)
            steps = {}
            for name, (*_, tx) in STAGES.items():
                steps[name], stages[name] = tx.update(grads, stages[name], params, cluster_ids=one[None])
            params, state = discover.take_step(trainer, grads, state, params, cluster_ids=one[None])
            return (params, state, stages, steps), None

        stages = {name: tx.init(params) for name, (*_, tx) in STAGES.items()}
        steps = dict.fromkeys(STAGES, params)
        return jax.lax.scan(step, (params, trainer.init(params), stages, steps), jnp.arange(STEPS))[0][3]

    matrices = {name: _second_matrix(tree) for name, tree in jax.jit(jax.vmap(steps_of))(jnp.arange(SEEDS)).items()}
    return {name: np.linalg.svd(np.asarray(one, np.float64), compute_uv=False) for name, one in matrices.items()}


def _second_matrix(params: Any) -> jax.Array:
    return [leaf for leaf in jax.tree.leaves(params) if leaf.shape[1:] == (64, 64)][-1]


def draw(found: dict[str, np.ndarray]) -> Figure:
    """The values over the first, by their number: mean over the seeds, a band of one standard deviation."""
    figure = Figure(figsize=(8, 4.4))
    axes = figure.add_axes((0.08, 0.11, 0.6, 0.72))
    for name, (title, color, _) in STAGES.items():
        shares = found[name][:, :SIZE] / found[name][:, :1]
        mean, std, at = shares.mean(0), shares.std(0, ddof=1), np.arange(1, 1 + SIZE)
        rank = f"{stable_ranks(found[name]).mean():.1f}"
        dash = "dashed" if title.endswith("Muon") else "solid"
        axes.plot(at, mean, color=color, linewidth=2.2, linestyle=dash, label=f"{title} ({rank})")
        axes.fill_between(at, np.maximum(mean - std, LEAST), mean + std, color=color, alpha=0.15, linewidth=0)
    set_title(
        axes,
        "Singular values of a step, over the first, when a batch holds one class",
        f"digits, 32 examples of one class a batch, second layer (64 × 64) of an MLP after {STEPS} of {2 * STEPS} "
        f"steps; mean and standard deviation, n = {SEEDS} seeds",
    )
    axes.set_xlabel("number of the singular value")
    axes.set_xlim(1, SIZE)
    axes.set_yscale("log")
    axes.set_ylim(LEAST, 1.3)
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, title="stage (stable rank)", reverse=True)
    return figure


def stable_ranks(values: np.ndarray) -> np.ndarray:
    """The sum of the squares over the largest square, one a seed: how many directions have a say."""
    return np.square(values).sum(1) / np.square(values[:, 0])


def main() -> None:
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    place = Path(sys.argv[1])
    found = singular_values()
    with styled():
        save_figure(draw(found), place.parent, place.name)
    rows = [{"label": name, "stable_rank": stable_ranks(values).round(3).tolist()} for name, values in found.items()]
    facts = {"data": "digits", "matrix": "second layer, 64 × 64", "steps": STEPS, "jax": jax.__version__}
    place.with_suffix(".json").write_text(
        json.dumps({"facts": facts, "rows": rows}, indent=2, ensure_ascii=False) + "\n"
    )


if __name__ == "__main__":
    main()
