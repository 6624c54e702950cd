"""Trains every optimizer while being killed, again and again, and once without: run as a program by the test.

usage: kill_harness.py FOLDER SEED KILLS_PER_OPTIMIZER [OPTIMIZER...]

The parent imports everything once (without touching a device) and forks a child for each attempt. A child trains one
optimizer, resuming whatever it finds, until it kills itself (SIGKILL) at a step or while a checkpoint is being written;
or all of them in turn, each in its own folder, until the parent kills it after a random time, or to the end. The
moments come from SEED.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.run import run
from discover.lab.training.progress import Quiet
from discover.registry import OPTIMIZERS

STEPS, CHECKPOINT_EVERY = 48, 9
NEEDED = {
    "discover_qhm": ["optimizer.nu=0.7"],
    "paper_discover": ["optimizer.alpha=0.1"],
    "paper_discover_qhm": ["optimizer.alpha=0.1", "optimizer.alpha_n=0.2", "optimizer.nu=0.7"],
    "paper_discover_igt": ["optimizer.alpha=0.1", "optimizer.tail_fraction=4"],
}
TEMPORARY = "*.orbax-checkpoint-tmp*"


def config(optimizer: str) -> Config:
    """Small, but with everything that must survive: two seeds, label noise, odd periods; dropout and crops once."""
    network = ["model.name=mlp", "model.width=8", "model.dropout=0.2", "data.padding=1"]
    return Config().override(
        [
            f"name={optimizer}",
            f"optimizer.name={optimizer}",
            "optimizer.learning_rate=0.05",
            "data.label_noise=0.1",
            "batches.groups=3",
            "batches.group_size=8",
            *(network if optimizer == "discover" else ["model.name=logistic"]),
            "training.seeds=3,5",
            f"training.steps={STEPS}",
            "training.steps_per_dispatch=7",
            "training.log_every=4",
            "training.eval_every=25",
            f"training.checkpoint_every={CHECKPOINT_EVERY}",
            "training.keep=2",
            *NEEDED.get(optimizer, []),
        ]
    )


def chosen() -> list[str]:
    """Those on the command line; none: all."""
    return sys.argv[4:] or list(OPTIMIZERS)


class KillsItself(Quiet):
    """Kills its own process at a step, or as soon as a checkpoint is being written after it."""

    def __init__(self, folder: Path, kind: str, at: int):
        self.folder, self.kind, self.at = folder, kind, at
        self.watching = False

    def advance(self, *, step: int, loss: float, accuracy: float, steps_per_second: float) -> None:
        if step < self.at:
            return
        if self.kind == "step":
            os.kill(os.getpid(), signal.SIGKILL)
        if not self.watching:
            self.watching = True
            threading.Thread(target=self._watch, daemon=True).start()
            time.sleep(0.001)

    def _watch(self) -> None:
        while True:
            if any(self.folder.glob(f"checkpoints/part-0/{TEMPORARY}")):
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.0002)


def child(base: Path, kill: tuple[str, str, int] | None) -> None:
    for optimizer in chosen() if kill is None else kill[:1]:
        folder = base / optimizer
        watcher = Quiet()
        if kill is not None:
            watcher = KillsItself(folder, *kill[1:])
        run(config(optimizer), folder, resume=True, progress=watcher)


def attempt(base: Path, kill: tuple[str, str, int] | None, delay: float | None = None) -> int:
    """Forks a child; returns its exit status, negative for a signal."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            child(base, kill)
            code = 0
        except BaseException as error:  # the child must never return into the parent's code
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    base, seed, each = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    report = {"kills": [], "unfinished_writes": 0}
    if attempt(base / "unbroken", None) != 0:
        raise SystemExit("the unbroken run failed")

    plan = []
    for optimizer in chosen():
        # Each kill lies later than the one before, so that a resumed run lives to see it.
        for moment in sorted(rng.sample(range(1, STEPS - CHECKPOINT_EVERY), each)):
            plan.append((optimizer, "write" if len(plan) % 2 else "step", moment))
    for kill in plan:
        status = attempt(base / "broken", kill)
        report["kills"].append([*kill, status])
        if status not in (0, -signal.SIGKILL):
            raise SystemExit(f"a child ended with status {status} at {kill}")
        report["unfinished_writes"] += any((base / "broken").glob(f"*/checkpoints/part-0/{TEMPORARY}"))
    if attempt(base / "broken", None) != 0:
        raise SystemExit("the last resumption failed")

    # At any moment whatever: start-up, compilation, checkpoints. Here the parent kills.
    optimizer = rng.choice(chosen())
    for _ in range(each if each > 2 else 0):
        shutil.rmtree(base / "broken" / optimizer, ignore_errors=True)
        status = attempt(base / "broken", None, delay=rng.uniform(0.05, 1.5))
        report["kills"].append([optimizer, "time", 0, status])
    if each > 2 and attempt(base / "broken", None) != 0:
        raise SystemExit("the last resumption failed")
    (base / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
