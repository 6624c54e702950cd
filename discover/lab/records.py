"""What a run leaves on disk: config.json, environment.json, metrics.jsonl, summary.json. Standard library only.

A *run directory* holds one optimizer with one configuration over one or several seeds::

    config.json        the full configuration
    environment.json   versions, hardware, git commit, command
    metrics.jsonl      {"kind": "train", "seed", "step", "loss", "accuracy", "learning_rate"}
                       {"kind": "eval", "split": "validation" | "test", "seed", "step", "loss", "accuracy"}
    summary.json       {"status": "running" | "finished" | "stopped" | "failed", "steps", "seeds", "final", ...}
    checkpoints/       owned by training

Metrics are only ever appended; a checkpoint remembers how long the file was, and resuming cuts it back to that
length, so that a killed and resumed run ends with the same bytes as an unbroken one.
"""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import stat
import subprocess
import sys
import zlib
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import IO, Any

CONFIG = "config.json"
ENVIRONMENT = "environment.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
CHECKPOINTS = "checkpoints"


class RecordsError(ValueError):
    """A directory that holds no records, or records that cannot be read. Always one line."""

    exit_code = 2


PACKAGES = ("discover-optim", "jax", "jaxlib", "optax", "flax", "orbax-checkpoint", "numpy", "scikit-learn")


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all: a temporary neighbour, flushed to disk, then renamed over it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Writes ``value`` as indented JSON, whole or not at all; numbers that are not finite become null."""
    write_text(path, json.dumps(finite(value), indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Reads a JSON file; a damaged one is a :class:`RecordsError` that names it."""
    check_ordinary(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also what is not UTF-8, or nested a thousand times
        raise RecordsError(f"{path} is damaged: {error}") from None


def check_ordinary(path: Path) -> None:
    """Raises where a pipe, a device or a file of holes stands in the place of a record: it would never end."""
    if not path.exists():
        return
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise RecordsError(f"{path} is damaged: it is no ordinary file")
    if found.st_size > (1 << 20) + 512 * 100 * getattr(found, "st_blocks", found.st_size):
        raise RecordsError(f"{path} is damaged: nearly all of its {found.st_size:,} bytes are holes")


def read_object(path: Path) -> dict[str, Any]:
    """Reads a JSON file that is of use but not needed: without it, or where it is damaged, there is nothing in it."""
    try:
        value = read_json(path)
    except (RecordsError, OSError):
        return {}
    return value if isinstance(value, dict) else {}


def finite(value: Any) -> Any:
    """Replaces floats that JSON cannot hold (NaN, infinities) by None, all the way down."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def mean_std(values: Iterable[float | None]) -> tuple[float, float]:
    """Mean and sample standard deviation; values that are not finite make both NaN, one value has std 0.

    >>> mean_std([1.0, 3.0])
    (2.0, 1.4142135623730951)
    """
    numbers = [math.nan if value is None else float(value) for value in values]
    if not numbers or not all(map(math.isfinite, numbers)):
        return math.nan, math.nan
    mean = math.fsum(numbers) / len(numbers)
    rest = math.fsum((number - mean) ** 2 for number in numbers)
    return mean, math.sqrt(rest / (len(numbers) - 1)) if len(numbers) > 1 else 0.0


def spread(values: Sequence[float | None]) -> dict[str, Any]:
    """The same as records have it, with the values; both null if a seed diverged.

    >>> spread([0.5, 0.7])["mean"]
    0.6
    """
    return finite({**dict(zip(("mean", "std"), mean_std(values))), "values": values})


class MetricsWriter:
    """Appends lines to metrics.jsonl, and knows how many bytes are safely in it, and their checksum.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with MetricsWriter(Path(folder) / METRICS) as writer:
        ...         writer.write([{"kind": "train", "seed": 0, "step": 10, "loss": 2.5}])
        ...         length, _ = writer.sync()
        ...     print(length, read_metrics(Path(folder)))
        54 [{'kind': 'train', 'seed': 0, 'step': 10, 'loss': 2.5}]
    """

    def __init__(self, path: Path, *, length: int | None = None):
        """Opens the file, cut back to ``length`` bytes where given (None: an empty file).

        Raises:
            RecordsError: the file is a link, or no ordinary file.
            ValueError: the file is shorter than ``length``, so lines of it were lost.
        """
        self._checksum = 0
        check_ordinary(path)
        if path.is_symlink():
            raise RecordsError(
                f"{path} is a link, and what it leads to would be overwritten: put the file itself there"
            )
        if not length:
            self._file: IO[bytes] = open(path, "wb")  # noqa: SIM115 (closed by close)
            return
        have = path.stat().st_size if path.exists() else 0
        if have < length:
            raise ValueError(f"{path} has {have} bytes where the checkpoint remembers {length}")
        os.truncate(path, length)
        self._checksum = checksum(path, length)
        self._file = open(path, "ab")  # noqa: SIM115 (closed by close)

    def write(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Appends one JSON object a line."""
        text = "".join(json.dumps(finite(line), allow_nan=False) + "\n" for line in lines)
        self._file.write(text.encode())
        self._checksum = zlib.crc32(text.encode(), self._checksum)

    def sync(self) -> tuple[int, int]:
        """Hands everything to the disk and returns the length of the file in bytes, and their checksum."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell(), self._checksum

    def flush(self) -> None:
        """Hands everything to the operating system, so that readers see it."""
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def checksum(path: Path, length: int) -> int:
    """Of the first bytes of a file."""
    result = 0
    check_ordinary(path)
    with open(path, "rb") as file:
        while length > 0 and (block := file.read(min(length, 1 << 20))):
            result, length = zlib.crc32(block, result), length - len(block)
    return result


def read_metrics(run_dir: Path | str) -> list[dict[str, Any]]:
    """Reads the lines of a run's metrics; a half-written last line (a run that is being written) is left out.

    Raises:
        RecordsError: a line before the last is damaged; the message names the file and the line.
    """
    lines, _, damaged = _whole_lines(Path(run_dir) / METRICS)
    if damaged is not None:
        raise RecordsError(f"{Path(run_dir) / METRICS} is damaged at line {damaged}")
    return lines


def undamaged_length(run_dir: Path | str) -> int:
    """How many bytes of a run's metrics are whole lines, up to the first that is damaged."""
    return _whole_lines(Path(run_dir) / METRICS)[1]


def _whole_lines(path: Path) -> tuple[list[dict[str, Any]], int, int | None]:
    """The lines up to the first that is damaged, their length in bytes, and the number of that line."""
    result, length = [], 0
    check_ordinary(path)
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], 0, None
    for number, line in enumerate(lines[:-1], 1):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            return result, length, number
        result.append(value)
        length += len(line) + 1
    return result, length, None


def read_summary(run_dir: Path | str) -> dict[str, Any] | None:
    """Returns the run's summary, or None where there is none yet."""
    path = Path(run_dir) / SUMMARY
    return read_json(path) if path.exists() else None


def is_finished(run_dir: Path | str) -> bool:
    """Says whether the directory holds a run that trained to its last step."""
    summary = read_summary(run_dir)
    return summary is not None and summary.get("status") == "finished"


def extract_run(
    run_dir: Path | str, new_dir: Path | str, members: Sequence[int], config: Mapping[str, Any] | None = None
) -> Path:
    """Writes some members of a run as a run directory of their own (without checkpoints)."""
    source, target = Path(run_dir), Path(new_dir)
    summary = read_summary(source)
    if summary is None:
        raise ValueError(f"{source} has no {SUMMARY}: the run has not ended")
    chosen = [summary["members"][index] for index in members]
    wanted = set(members)
    lines = [
        {key: value for key, value in line.items() if key != "member"}
        for line in read_metrics(source)
        if line.get("member", 0) in wanted
    ]
    environment = read_object(source / ENVIRONMENT) or None
    write_run(target, config if config is not None else read_json(source / CONFIG), environment, lines, summary, chosen)
    return target


def write_run(
    target: Path,
    config: Mapping[str, Any],
    environment: Mapping[str, Any] | None,
    lines: Iterable[Mapping[str, Any]],
    summary: Mapping[str, Any],
    members: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Writes a run directory whose members were trained elsewhere, without checkpoints; returns its summary."""
    target.mkdir(parents=True, exist_ok=True)
    own = {"seeds": [member["seed"] for member in members], "members": members, "final": gather_final(members)}
    write_json(target / CONFIG, config)
    if environment is not None:
        write_json(target / ENVIRONMENT, environment)
    write_text(target / METRICS, "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))
    write_json(target / SUMMARY, {**summary, **own})
    return {**summary, **own}


def gather_final(members: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float | None]]]:
    """Turns each member's last evaluation into ``{split: {quantity: [one value per member]}}`` (null: diverged)."""
    result: dict[str, dict[str, list[float | None]]] = {}
    for split in ("validation", "test"):
        if any(split in (member.get("final") or {}) for member in members):
            result[split] = {
                quantity: [((member.get("final") or {}).get(split) or {}).get(quantity) for member in members]
                for quantity in ("accuracy", "loss")
            }
    return result


def environment(
    devices: Sequence[str] = (), backend: str | None = None, command: Sequence[str] | None = None
) -> dict[str, Any]:
    """Describes where a run happens: versions, hardware, git commit and command.

    Paths are left as the user typed them, and the program's own location is left out.
    """
    argv = list(sys.argv if command is None else command)
    if argv:
        argv[0] = "python -m discover" if argv[0].endswith("__main__.py") else Path(argv[0]).name or "python"
    program = argv[:1]
    return {
        "command": " ".join([*program, shlex.join(argv[1:])]).strip(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "system": platform.system(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "backend": backend,
        "devices": list(devices),
        "git": git_commit(),
    }


def git_commit() -> dict[str, Any] | None:
    """Returns the commit of the sources that are running and whether they were changed; None outside of git."""
    package = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str | None:
        try:
            # Without locks: a look must not leave one behind when it is killed.
            command = ["git", "--no-optional-locks", "-C", str(package), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    # An installed copy inside somebody else's repository (a virtual environment) is not under their version control.
    if git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", ".")
    return {"commit": commit, "changed": bool(changed)} if commit else None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
