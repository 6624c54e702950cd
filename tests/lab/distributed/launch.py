"""Starts the processes of some runs on this machine and waits for all of them."""

import json
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests import one_device

WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Ended:
    code: int
    output: str
    seconds: float  # from the start of all


def job(config, out, **options):
    """One run for `launch`: also resume=True, fault="kill:WHO:STEP", own_data=FOLDER, in_memory=True."""
    return {"config": config.to_dict(), "out": str(out), **options}


def launch(count, *jobs, timeout=60.0, limit=240.0, slurm=False, of=None):
    """Runs `count` worker processes to their end, each doing one job after the other; returns how each of them ended.

    With `slurm` nobody is told who else there is: they find it in the variables that Slurm sets. With `of` they are
    told that there are more of them than are started.
    """
    fault = jobs[-1].get("fault", "")
    path = Path(jobs[0]["out"] + ".jobs.json")
    path.write_text(json.dumps(jobs))
    port = free_port(61440 if slurm else 0)
    began = time.monotonic()
    workers = []
    for index in range(count):
        command = [sys.executable, str(WORKER), str(path), "--timeout", str(timeout)]
        environment = one_device.environment()
        if slurm:
            command += ["--coordinator", "auto"]
            environment |= {
                "SLURM_JOB_ID": str(port - 61440),  # from which JAX makes the port, as long as there is no other
                "SLURM_STEP_NODELIST": "localhost",
                "SLURM_STEP_NUM_NODES": "1",
                "SLURM_NTASKS": str(count),
                "SLURM_PROCID": str(index),
                "SLURM_LOCALID": str(index),
            }
        else:
            command += ["--coordinator", f"localhost:{port}", "--num-processes", str(of or count)]
            command += ["--process-id", str(index)]
        log = path.with_suffix(f".{index}.log").open("w+")
        workers.append((subprocess.Popen(command, stdout=log, stderr=log, env=environment), log))
    ended: dict[int, float] = {}
    try:
        while len(ended) < count and time.monotonic() - began < limit:
            for index, (process, _) in enumerate(workers):
                if index not in ended and process.poll() is not None:
                    ended[index] = time.monotonic() - began
            # A process that hangs on purpose is not waited for.
            if fault.startswith(("hang", "freeze")) and set(range(count)) - set(ended) == {int(fault.split(":")[1])}:
                break
            time.sleep(0.1)
    finally:
        for process, _ in workers:
            if process.poll() is None:
                process.kill()
                process.wait()
    result = []
    for index, (process, log) in enumerate(workers):
        log.seek(0)
        result.append(Ended(process.returncode, log.read(), ended.get(index, limit)))
        log.close()
    return result


def free_port(first):
    """A port that nobody uses: any, or one from `first` on."""
    for port in range(first, 65536) if first else [0]:
        with socket.socket() as free:
            try:
                free.bind(("localhost", port))
            except OSError:
                continue
            return free.getsockname()[1]
    raise OSError("no free port")
