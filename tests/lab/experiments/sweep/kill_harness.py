"""Runs sweeps that are killed at chosen moments, and once without: run as a program by the test.

usage: kill_harness.py FOLDER SEED KILLS (one: a short one, by optuna only)

The parent imports everything once and forks a child for each attempt. A child kills itself (SIGKILL) at the n-th call
of something that changes what is on disk: a value that is drawn, an evaluation, a trial's record, optuna's verdict.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import optuna

from discover.lab.experiments.presets.presets import get_preset
from discover.lab.experiments.sweep import trials as sweep_trials
from discover.lab.experiments.sweep.search import make_search
from discover.lab.experiments.sweep.train import sweep

SMALL = [
    "model.name=logistic", "model.depth=none", "model.width=none", "training.steps=12", "training.eval_every=3",
    "training.steps_per_dispatch=3", "training.log_every=2", "training.seeds=0,1", "training.checkpoint_every=5",
    "batches.group_size=8",
]  # fmt: skip
AXES = ["learning_rate=0.03,0.3", "nu=0,0.95"]


def plan(search, kills):
    trials = max(3, 2 * kills) if search == "tpe" else None  # an attempt may end two before it is killed
    axes = {"axes": AXES, "trials": trials, "seed": 3}
    return make_search(get_preset("digits"), "discover", method=search, overrides=SMALL, **axes)


def kill_at(owner, name, number):
    """The ``number``-th call of ``owner.name`` does its work (returns or prunes), and then the process is gone."""
    original, calls = getattr(owner, name), []

    def wrapped(*arguments, **options):
        try:
            return original(*arguments, **options)
        finally:
            calls.append(None)
            if len(calls) == number:
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, wrapped)


POINTS = {  # what is called, and how late the kill may come
    "drawn": (optuna.trial.Trial, "_suggest", 5),
    "evaluated": (optuna.trial.Trial, "report", 7),
    "recorded": (sweep_trials.Trials, "write", 2),
    "trained": (sweep_trials.Trials, "train", 2),
    "told": (optuna.study.Study, "tell", 2),
    "asked": (optuna.study.Study, "ask", 2),
}


def start(folder, search, kills, kill=None):
    """Forks a child that sweeps, and notes beside the folder which trials it ended."""
    child = os.fork()
    if child == 0:
        try:
            if kill is not None:
                point, number = kill
                kill_at(*POINTS[point][:2], number)
            with open(f"{folder}.{os.getpid()}.ended", "a", buffering=1) as ended:  # a kill loses no line
                sweep(plan(search, kills), folder, programs={}, say=lambda trial: print(trial["number"], file=ended))
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def wait(child):
    """How it ended: 0, or minus the signal that killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main():
    base, seed, kills = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    report = {"kills": []}
    for search in ("grid", "tpe") if kills > 1 else ("tpe",):
        if wait(start(base / f"{search}-unbroken", search, kills)) != 0:
            raise SystemExit("the unbroken sweep failed")
        points = [name for name in POINTS if search == "tpe" or name in ("recorded", "trained")]
        points = points if kills > 1 else ["evaluated"]
        for index in range(kills if search == "tpe" else (kills + 2) // 4):
            point = points[index % len(points)]
            number = rng.randint(1, POINTS[point][2])
            status = wait(start(base / f"{search}-broken", search, kills, (point, number)))
            report["kills"].append([search, point, number, status])
        if wait(start(base / f"{search}-broken", search, kills)) != 0:
            raise SystemExit("the last resumption failed")
    for search in ("grid", "tpe") if kills > 1 else ():
        # Several at once on one folder, one of which dies between a training and its record. It has a trial already
        # when the others come: they could have done everything before its turn.
        folder = base / f"{search}-shared"
        doomed = start(folder, search, kills, ("trained", 1))
        while not (folder / "trials" / "0000.lock").exists():
            time.sleep(0.005)
        others = [start(folder, search, kills) for _ in range(2)]
        report[f"{search}-shared"] = [wait(child) for child in (doomed, *others)]
    (base / "report.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
