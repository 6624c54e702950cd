"""Data that lives with the worker: every process has its own domains, and nobody else's data.

Each worker of this example holds the handwritten digits of some classes only (its "domains") and never sees any other.
It reads them as workers read files, one domain for five batches, then another. So at every step the batch holds as many
domains as there are workers, and soon others: the case in which momentum stalls. What travels between workers is
gradients and parameters, never data; evaluation, too, happens where the data is. The learning rate of each optimizer is
the best of three on digits that are neither trained on nor in the test set.

    python examples/one_domain_per_worker.py               # two workers, as two processes on this machine
    python examples/one_domain_per_worker.py --workers 5

On several machines start one process on each, all with the same HOST:PORT, that of the first:

    python examples/one_domain_per_worker.py --workers 2 --coordinator HOST:PORT --worker I
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys

CLASSES, GROUP_SIZE, WIDTH = 10, 32, 64
STRETCH = 5  # steps for which a worker stays with one domain


def own_data(worker: int, workers: int):
    """This worker's digits: to train on, by class; to choose the learning rate with; and to test.

    A real worker would read its own files here. This one stands in for it: it loads all digits, which are small, and
    keeps those of its own classes; nothing after this function ever sees another.
    """
    import numpy as np
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    mine = list(range(worker, CLASSES, workers))
    train, held_out, test = {}, [], []
    for name in mine:
        examples = images[labels == name]
        first, second = len(examples) * 6 // 10, len(examples) * 8 // 10
        train[name] = examples[:first]
        held_out.append((examples[first:second], name))
        test.append((examples[second:], name))

    def joined(parts):
        x = np.concatenate([examples for examples, _ in parts])
        return x, np.concatenate([np.full(len(examples), name, np.int32) for examples, name in parts])

    return train, joined(held_out), joined(test)


def train(worker: int, workers: int, steps: int, rates: list[float]) -> None:
    """Trains with momentum and with Discover; the first worker prints."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    import optax
    from jax.experimental.multihost_utils import process_allgather
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    import discover
    from discover.optim.sharding import shard_by_parameter, sharded_group_value_and_grad

    mesh = Mesh(np.array(jax.devices()), ("data",))
    by_group, everywhere = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    domains, held_out, test = own_data(worker, workers)
    names = list(domains)

    def spread(array):  # one group from every worker
        return jax.make_array_from_process_local_data(by_group, array[None])

    def logits(params, x):
        x = jax.nn.relu(x @ params["in"] + params["in_bias"])
        x = jax.nn.relu(x @ params["middle"] + params["middle_bias"])
        return x @ params["out"]

    def loss(params, group):
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, group[0]), group[1]).mean()

    def start():
        keys = jax.random.split(jax.random.key(0), 3)
        return {
            "in": jax.random.normal(keys[0], (64, WIDTH)) / 8,
            "in_bias": jnp.zeros(WIDTH),
            "middle": jax.random.normal(keys[1], (WIDTH, WIDTH)) / 8,
            "middle_bias": jnp.zeros(WIDTH),
            "out": jax.random.normal(keys[2], (WIDTH, CLASSES)) / 8,
        }

    right = jax.jit(lambda params, x, y: jnp.sum(jnp.argmax(logits(params, x), axis=-1) == y))

    def accuracies(params):
        """On all workers' held-out digits, and on all workers' test digits: only counts travel."""
        own = jax.tree.map(lambda p: p.addressable_data(0), params)  # whole on every worker
        counts = [(int(right(own, x, y)), len(y)) for x, y in (held_out, test)]
        totals = process_allgather(np.array(counts)).reshape(-1, 2, 2).sum(axis=0)
        return totals[:, 0] / totals[:, 1]

    def run(make):
        gradients = sharded_group_value_and_grad(loss, mesh)

        @jax.jit
        def step(params, state, batch, domain, rate):
            tx = shard_by_parameter(make(rate), mesh)
            _, grads = gradients(params, batch)
            updates, state = tx.update(grads, state, params, cluster_ids=domain)
            return optax.apply_updates(params, updates), state

        results = []
        for rate in rates:
            params = jax.jit(start, out_shardings=everywhere)()
            state = shard_by_parameter(make(0.0), mesh).init(params)
            draws = np.random.default_rng(worker)
            curve = []
            name = names[0]
            for number in range(1, steps + 1):
                if number % STRETCH == 1:
                    name = names[draws.integers(len(names))]
                x = domains[name][draws.integers(len(domains[name]), size=GROUP_SIZE)]
                batch = spread(x), spread(np.full(GROUP_SIZE, name, np.int32))
                ids = jax.make_array_from_process_local_data(by_group, np.array([name], np.int32))
                params, state = step(params, state, batch, ids, jnp.float32(rate))
                if number % (steps // 20) == 0:
                    curve.append(accuracies(params))
            chosen_by, reported = np.array(curve[-5:]).T
            results.append((chosen_by.mean(), reported.mean(), reported.std(), rate))
        return max(results)[1:]

    optimizers = {
        "momentum": lambda rate: discover.momentum(rate, 0.9),
        "discover": lambda rate: discover.discover(rate, discover.Clusters.uniform(CLASSES), beta=0.97, nu=0.93),
    }
    for name, make in optimizers.items():
        mean, deviation, rate = run(make)
        if worker == 0:
            print(
                f"{name:10s} {100 * mean:5.1f} % ± {100 * deviation:.1f} of all workers' test digits "
                f"(last quarter of {steps} steps; of the learning rates {rates} held-out digits chose {rate})",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.03, 0.1, 0.3])
    parser.add_argument("--coordinator", help="HOST:PORT of the first worker; default: all workers on this machine")
    parser.add_argument("--worker", type=int, help="which worker this is, from 0")
    options = parser.parse_args()
    if options.steps < 20:
        parser.error(f"--steps must be at least 20, for the 20 evaluations, got {options.steps}")
    if not 1 <= options.workers <= CLASSES:
        parser.error(f"--workers must be from 1 to {CLASSES}, one class each at least, got {options.workers}")
    if options.worker is not None:
        import jax

        jax.distributed.initialize(options.coordinator, options.workers, options.worker)
        train(options.worker, options.workers, options.steps, options.rates)
        return
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    workers = [
        subprocess.Popen([sys.executable, *sys.argv, "--coordinator", f"localhost:{port}", "--worker", str(worker)])
        for worker in range(options.workers)
    ]
    codes = [worker.wait() for worker in workers]
    raise SystemExit(max(codes))


if __name__ == "__main__":
    main()
