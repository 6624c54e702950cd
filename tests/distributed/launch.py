"""Starts the processes of a run on this machine and waits for all of them."""

import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class Ended:
    code: int
    output: str
    seconds: float  # from the start of all


def launch(count, config, out, *, resume=False, fault="none:-1:0", timeout=60.0, limit=240.0):
    """Runs `count` worker processes to their end; returns how each of them ended."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    path = Path(out).with_suffix(".config.json")
    path.write_text(config.to_json())
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(WORKER.parents[2])}
    began = time.monotonic()
    workers = []
    for index in range(count):
        command = [sys.executable, str(WORKER), str(index), str(count), str(port), str(path), str(out)]
        command += ["--fault", fault, "--timeout", str(timeout), *(["--resume"] if resume else [])]
        log = Path(f"{out}.{index}.log").open("w+")  # noqa: SIM115 (closed below)
        workers.append((subprocess.Popen(command, stdout=log, stderr=log, env=environment), log))
    ended: dict[int, float] = {}
    try:
        while len(ended) < count and time.monotonic() - began < limit:
            for index, (process, _) in enumerate(workers):
                if index not in ended and process.poll() is not None:
                    ended[index] = time.monotonic() - began
            # A process that hangs on purpose is not waited for.
            if fault.startswith("hang") and set(range(count)) - set(ended) == {int(fault.split(":")[1])}:
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
