"""Data that lives with the worker: every process has its own domains, and nobody else's data.

Each worker of this example holds the handwritten digits of some classes only (its "domains") and never sees any other.
It reads them as workers read files, one domain for ten batches, then another. So at every step the batch holds as
many domains as there are workers, and soon others: the case in which momentum stalls. What travels between workers is
gradients and parameters, never data; evaluation, too, happens where the data is. The learning rate of each optimizer is
the best of some on digits that are neither trained on nor in the test set.

    python examples/one_domain_per_worker.py               # two workers, as two processes on this machine
    python examples/one_domain_per_worker.py --workers 5

On several machines start one process on each, all with the same HOST:PORT, that of the first:

    python examples/one_domain_per_worker.py --workers 2 --coordinator HOST:PORT --worker I
"""

import argparse
import random
import socket
import statistics
import subprocess
import sys

CLASSES = 10
STRETCH = 10  # steps for which a worker stays with one domain
OPTIMIZERS = {
    "momentum": ["optimizer.name=momentum", "optimizer.beta=0.9"],
    "discover": ["optimizer.name=discover", "optimizer.beta=0.97", "optimizer.nu=0.93"],
}


def own_data(worker: int, workers: int):
    """This worker's digits, with its own parts to choose the learning rate with and to test.

    A real worker would read its own files here. This one stands in for it: it loads all digits, which are small, and
    keeps those of its own classes; nothing after this function ever sees another.
    """
    import numpy as np

    from discover.lab.data import Dataset, load

    digits = load("digits")
    train, test = (
        split.subset(np.flatnonzero(split.labels % workers == worker)) for split in (digits.train, digits.test)
    )
    return Dataset(f"digits of worker {worker}", train, test, CLASSES).split_validation(0.25)


def who_reads_what(workers: int, steps: int) -> list[int]:
    """The domain of each worker's group, step after step: first each of its own once, then any of them at random."""
    orders = []
    for worker in range(workers):
        domains, draws = range(worker, CLASSES, workers), random.Random(worker)
        orders.append(draws.sample(domains, len(domains)) + draws.choices(domains, k=steps // STRETCH))
    return [domain for turn in list(zip(*orders))[: -(-steps // STRETCH)] for _ in range(STRETCH) for domain in turn]


def train(team, workers: int, steps: int, rates: list[float], seeds: int) -> None:
    """Trains with momentum and with Discover; the first worker prints."""
    from discover.lab.experiments.config.config import Config
    from discover.lab.experiments.run.run import Member, run

    own = own_data(team.processes.index, workers)
    config = Config().override(
        [
            "data.shared=false",
            "batches.composition=given",
            f"batches.given={','.join(map(str, who_reads_what(workers, steps)))}",
            f"batches.groups={workers}",
            "model.name=mlp",
            "model.width=64",
            "model.depth=2",
            f"training.steps={steps}",
            "training.eval_every=0",
            "training.member_mode=vmap",  # what all members send travels together
        ]
    )
    programs = {}  # what is compiled for the first optimizer and serves the second too
    members = [Member(seed, {"learning_rate": rate}) for rate in rates for seed in range(seeds)]
    for name, settings in OPTIMIZERS.items():
        result = run(config.override(settings), None, members=members, dataset=own, team=team, programs=programs)
        found = {}  # learning rate -> for each seed the accuracies on all workers' held-out and test digits
        for member in result.members:
            accuracies = [member.final[part]["accuracy"] if member.final else 0.0 for part in ("validation", "test")]
            found.setdefault(member.hyperparameters["learning_rate"], []).append(accuracies)
        best = max(found, key=lambda rate: statistics.mean(held_out for held_out, _ in found[rate]))
        tests = [100 * test for _, test in found[best]]
        if team.first:
            print(
                f"{name:10s} {statistics.mean(tests):5.1f} % ± {statistics.pstdev(tests):.1f} of all workers' test "
                f"digits (n={seeds} seeds, {steps} steps; of the learning rates {rates} held-out digits chose {best})",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.03, 0.1, 0.3])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--coordinator", help="HOST:PORT of the first worker; default: all workers on this machine")
    parser.add_argument("--worker", type=int, help="which worker this is, from 0")
    options = parser.parse_args()
    if not 1 <= options.workers <= CLASSES:
        parser.error(f"--workers must be from 1 to {CLASSES}, one class each at least, got {options.workers}")
    least = STRETCH * -(-CLASSES // options.workers)
    if options.steps < least:
        parser.error(f"--steps must be at least {least}, to read each domain once, got {options.steps}")
    if options.worker is not None:
        from discover.lab.experiments.run.team import Team

        team = Team.gather(None, options.coordinator, options.workers, options.worker)
        train(team, options.workers, options.steps, options.rates, options.seeds)
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
