"""Forty percent of the labels are wrong, and batches are pure in the labels as observed: momentum and Discover.

At every sight of an example its label is replaced by a wrong one with probability 0.4, so the clusters are the labels
that one would really have. `python examples/label_noise.py`, some ten seconds on a CPU.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import discover
from discover.lab.data import BatchPlan, LabelNoise, cluster, load
from discover.lab.models import build_network

STEPS, SEEDS = 400, 5
digits = load("digits")
images = jnp.asarray(digits.train.images) / 255.0  # on the device, once
network = build_network("mlp", digits.train.images.shape[1:], digits.num_classes)


def loss_fn(params, group):
    x, y = group
    return optax.softmax_cross_entropy_with_integer_labels(network.apply(params, x), y).mean()


def train(tx: optax.GradientTransformationExtraArgs, plans: list[BatchPlan]) -> np.ndarray:
    """Trains once with each plan, all at once; returns the accuracies on the clean test labels."""

    def step(carry, batch):
        params, state = carry
        group = (images[batch.indices], batch.labels)  # batch.labels: after the noise
        _, grads = discover.group_value_and_grad(loss_fn)(params, group)
        updates, state = tx.update(grads, state, params, cluster_ids=batch.cluster_ids)
        return (optax.apply_updates(params, updates), state), None

    def run(key, batches):
        params = network.init(key)
        (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), batches)
        logits = network.apply(params, digits.test.images / 255.0)
        return (logits.argmax(axis=-1) == digits.test.labels).mean()

    batches = jax.tree.map(lambda *seeds: np.stack(seeds), *(plan.batches(0, STEPS) for plan in plans))
    return np.asarray(jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), len(plans)), batches))


def main() -> dict[str, float]:
    """Prints a table; returns the mean accuracy of each row."""
    plans = []
    for seed in range(SEEDS):
        observed = cluster(digits, "classes", noise=LabelNoise(0.4, num_classes=digits.num_classes, seed=seed))
        plans.append(BatchPlan(digits.train.labels, observed, groups=1, group_size=32, seed=seed))
    rate = optax.cosine_decay_schedule(0.3, STEPS)
    rows = {
        "momentum": discover.momentum(rate),
        "Discover": discover.discover(rate, discover.Clusters(plans[0].probs)),
    }
    means = {}
    for name, tx in rows.items():
        accuracies = train(tx, plans)
        means[name] = float(accuracies.mean())
        print(f"{name:10} test accuracy {means[name]:.1%}   of {SEEDS} seeds:", *(f"{a:.1%}" for a in accuracies))
    return means


if __name__ == "__main__":
    main()
