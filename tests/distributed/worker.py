"""One process of a run: python worker.py INDEX COUNT PORT CONFIG OUT [--resume] [--fault kill|hang|leave:WHO:STEP]."""

import argparse
import os
import signal
import time
from pathlib import Path

from discover.experiments.config import Config
from discover.experiments.run import run
from discover.experiments.team import Team
from discover.training.errors import RunError

parser = argparse.ArgumentParser()
parser.add_argument("index", type=int)
parser.add_argument("count", type=int)
parser.add_argument("port", type=int)
parser.add_argument("config", type=Path)
parser.add_argument("out", type=Path)
parser.add_argument("--resume", action="store_true")
parser.add_argument("--fault", default="none:-1:0")
parser.add_argument("--timeout", type=float, default=60)
options = parser.parse_args()
kind, who, step = options.fault.split(":")


class FaultyTeam(Team):
    """Something happens to one of the processes when it draws the batches of a certain step."""

    def draw(self, draw, images):
        drawn = super().draw(draw, images)
        happened = []

        def faulty(first, count):
            if self.processes.index == int(who) and first >= int(step) and not happened:
                happened.append(first)
                if kind == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if kind == "term":
                    os.kill(os.getpid(), signal.SIGTERM)
                if kind == "hang":
                    time.sleep(10_000)
                if kind == "leave":
                    raise RunError("its disk is full")
            return drawn(first, count)

        return faulty


team = FaultyTeam.gather(None, f"localhost:{options.port}", options.count, options.index, timeout=options.timeout)
try:
    run(Config.from_json(options.config.read_text()), options.out, resume=options.resume, team=team)
except RunError as error:
    print(f"error: {error}", flush=True)
    raise SystemExit(error.exit_code) from None
