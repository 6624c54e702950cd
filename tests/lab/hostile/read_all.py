"""Reads hostile files in a process of its own and says what came of each: `outcomes` starts it."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import time
import unicodedata
from pathlib import Path

SECONDS, MEGABYTES = 30, 2000
RAW = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control and format characters, halves of pairs, ends of lines


def read(source, path):
    from discover.lab.data import Clustering, DataError, load
    from discover.lab.data.sources.kinds import left_out, picture_sides, source_of

    if source == "clustering":
        return Clustering.load(path).names
    for look in (source_of, picture_sides, left_out) if source == "folder" else (source_of,):
        with contextlib.suppress(
            DataError
        ):  # what the command line looks at before it reads; who reads says what is wrong
            look(path)
    options = {"cache": False} if source == "folder" else {}
    return load(source, path, **options).class_names[:100]


def outcome(source, path):
    """What came of one file: {"refused": message} or {"accepted": names} or {"failed": error}, and the seconds."""
    from discover.lab.data import DataError

    began = time.monotonic()
    signal.alarm(SECONDS)
    try:
        result = {"accepted": list(read(source, path))}
    except DataError as error:
        result = {"refused": str(error)}
    except BaseException as error:
        result = {"failed": f"{type(error).__name__}: {error}"[:300]}
    signal.alarm(0)
    return {**result, "seconds": time.monotonic() - began}


def outcomes(cases, folder):
    """What came of (source, path) each, and the megabytes that the process took at most; it does nothing else."""
    listed = folder / "cases.json"
    listed.write_text(json.dumps([(source, os.fspath(path)) for source, path in cases]))
    command = [sys.executable, __file__, str(listed)]
    root = str(Path(__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS * len(cases) + 60, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    return found["outcomes"], found["megabytes"]


def check(result, name):
    """Raises unless a file was refused in one line that a terminal may show, or accepted with such names."""
    assert "failed" not in result, (name, result)
    assert result["seconds"] < SECONDS, (name, result)
    for text in result.get("accepted", [result.get("refused")]):
        assert not any(unicodedata.category(one) in RAW for one in text), (name, text)


def most_megabytes():
    """Of this program alone: what `getrusage` says begins with the memory of the process that started it."""
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith("VmHWM")) / 1024


def timed_out(*_):
    raise TimeoutError(f"not done in {SECONDS} seconds")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, timed_out)
    found = [outcome(source, path) for source, path in json.loads(Path(sys.argv[1]).read_text())]
    megabytes = most_megabytes()
    print(json.dumps({"outcomes": found, "megabytes": megabytes}))
