"""One process of some runs: python worker.py JOBS [--coordinator …]; see `launch.job` for what a job is."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

from discover.lab.data import load
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.run import run
from discover.lab.experiments.run.team import Team
from discover.lab.training.errors import RunError

parser = argparse.ArgumentParser()
parser.add_argument("jobs", type=Path)
parser.add_argument("--coordinator")
parser.add_argument("--num-processes", type=int)
parser.add_argument("--process-id", type=int)
parser.add_argument("--timeout", type=float)
options = parser.parse_args()


class FaultyTeam(Team):
    """Something happens to one of the processes when it draws the batches of a certain step."""

    fault = "none:-1:0"

    def feed(self, plans, images, length):
        feed = super().feed(plans, images, length)
        kind, who, step = self.fault.split(":")
        happened = []

        def faulty(first, count):
            if self.processes.index == int(who) and first >= int(step) and not happened:
                happened.append(first)
                if kind == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if kind == "term":
                    os.kill(os.getpid(), signal.SIGTERM)
                if kind == "freeze":
                    os.kill(os.getpid(), signal.SIGSTOP)
                if kind == "hang":
                    time.sleep(10_000)
                if kind == "leave":
                    raise RunError("its disk is full")
            return feed(first, count)

        return faulty

    def load(self, config, dataset=None):
        kind, who, seconds = self.fault.split(":")
        if kind == "slow" and self.processes.index == int(who):
            time.sleep(float(seconds))
        return super().load(config, dataset)


opened: list[str] = []
sys.addaudithook(lambda event, arguments: opened.append(str(arguments[0])) if event == "open" else None)
found = FaultyTeam.gather(None, options.coordinator, options.num_processes, options.process_id, timeout=options.timeout)
assert isinstance(found, FaultyTeam)
programs = {}
for job in json.loads(options.jobs.read_text()):
    found.fault = job.get("fault", "none:-1:0")
    opened.clear()
    own = None if "own_data" not in job else load("npz", f"{job['own_data']}/{found.processes.index}.npz")
    try:
        run(
            Config.from_dict(job["config"]),
            None if job.get("in_memory") else job["out"],
            resume=job.get("resume", False),
            team=found,
            dataset=own,
            programs=programs,
        )
    except RunError as error:
        print(f"error: {error}", flush=True)
        raise SystemExit(error.exit_code) from None
    Path(f"{job['out']}.opened.{found.processes.index}.json").write_text(json.dumps(opened))
