"""Every batch holds one class of handwritten digits: momentum, Adam and Discover on the same batches.

The fourth row is the control: momentum on shuffled batches of the same size. In the last two a label is replaced by a
wrong one with probability 0.4 at every sight of its example, and batches are pure in the labels as observed, which are
those that one would really have. `python examples/classes_as_clusters.py`, some twenty seconds on a CPU.
`discover compare digits` (and `digits-noise`) does the same with learning rates chosen on a validation split.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import discover
from discover.lab.data import BatchPlan, LabelNoise, cluster, load
from discover.lab.models import build_network

STEPS, BATCH, SEEDS = 200, 32, 5
digits = load("digits")
images = jnp.asarray(digits.train.images) / 255.0  # on the device, once
network = build_network("mlp", digits.train.images.shape[1:], digits.num_classes, depth=2, width=64)


def loss_fn(params, group):
    x, y = group
    return optax.softmax_cross_entropy_with_integer_labels(network.apply(params, x), y).mean()


def train(tx: optax.GradientTransformationExtraArgs, plans: list[BatchPlan]) -> np.ndarray:
    """Trains once with each plan, all at once; returns the accuracies on the test split, whose labels are right."""

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


def draw(composition: str, wrong: float) -> list[BatchPlan]:
    """One plan for each seed: batches of one class ("random"), or of examples of any class ("shuffled")."""
    plans = []
    for seed in range(SEEDS):
        classes = cluster(digits, "classes", noise=LabelNoise(wrong, digits.num_classes, seed))
        options = {"groups": 1, "group_size": BATCH, "composition": composition}
        plans.append(BatchPlan(digits.train.labels, classes, **options, seed=seed))
    return plans


def main() -> dict[str, float]:
    """Prints a table; returns the mean accuracy of each row."""
    schedule = optax.cosine_decay_schedule
    momentum, rate = discover.momentum(schedule(0.3, STEPS)), schedule(0.3, STEPS)
    rows = {
        "momentum": (lambda _: momentum, "random", 0.0),
        "Adam": (lambda _: discover.adam(schedule(0.003, STEPS)), "random", 0.0),
        "Discover": (lambda clusters: discover.discover(rate, clusters), "random", 0.0),
        "momentum, shuffled": (lambda _: discover.momentum(schedule(1.0, STEPS)), "shuffled", 0.0),
        "momentum, 40% wrong": (lambda _: momentum, "random", 0.4),
        "Discover, 40% wrong": (lambda clusters: discover.discover(rate, clusters), "random", 0.4),
    }
    means = {}
    for name, (make, composition, wrong) in rows.items():
        plans = draw(composition, wrong)
        accuracies = train(make(discover.Clusters(plans[0].probs)), plans)
        means[name] = float(accuracies.mean())
        print(f"{name:20} test accuracy {means[name]:.1%}   of {SEEDS} seeds:", *(f"{a:.1%}" for a in accuracies))
    return means


if __name__ == "__main__":
    main()
