"""What a compiled program sends between devices: read from the program itself, not assumed."""

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

_BITS = {"pred": 8, "s4": 4, "u4": 4, "c64": 64, "c128": 128}
_SHAPE = re.compile(r"\b([a-z]+[0-9]*[a-z0-9]*)\[([0-9,]*)\]")
_OPERATION = re.compile(
    r"= (?P<result>\(.*?\)|\S+) (?P<kind>all-reduce|all-gather|all-to-all|ragged-all-to-all|reduce-scatter|"
    r"collective-permute|collective-broadcast)(?P<start>-start)?\("
)
_GROUPS_LIST = re.compile(r"replica_groups=\{\{([0-9,]*)\}")
_GROUPS_IOTA = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=")
_GROUPS_MESH = re.compile(r"replica_groups=mesh\[(?P<mesh>[^\]]*)\][^{]*\{(?P<axes>[^}]*)\}")


class Collective(NamedTuple):
    """One collective operation of a compiled program."""

    kind: str  # all-reduce, all-gather, all-to-all, reduce-scatter, collective-permute, ...
    devices: int  # how many devices take part together
    payload: int  # bytes on one device: of the whole vector that is reduced, gathered or exchanged

    @property
    def sent(self) -> float:
        """Bytes that each device sends, by the algorithms that send least.

        With B the payload and D the devices: an all-reduce 2B(D − 1)/D (a reduce-scatter, then an all-gather);
        all-gather, reduce-scatter and all-to-all B(D − 1)/D each; a permutation or broadcast B.
        """
        share = (self.devices - 1) / self.devices
        factor = {"all-reduce": 2 * share, "all-gather": share, "reduce-scatter": share, "all-to-all": share}
        return self.payload * factor.get(self.kind, 1.0 if self.devices > 1 else 0.0)


def collectives(compiled: Any) -> list[Collective]:
    """The collective operations of a compiled program, in the order of its text.

    An operation inside a loop is listed once, so look at a program of one step.

    Args:
      compiled: what `jax.jit(f).lower(...).compile()` returns, or its text.

    Example:
      >>> text = "%x = f32[8,4]{1,0} all-gather(%y), replica_groups=[1,8]<=[8], dimensions={0}"
      >>> collectives(text)
      [Collective(kind='all-gather', devices=8, payload=128)]
      >>> collectives(text)[0].sent
      112.0
    """
    text = compiled if isinstance(compiled, str) else compiled.as_text()
    total = _num_partitions(text)
    found = []
    for line in text.splitlines():
        match = _OPERATION.search(line)
        if match is None:
            continue
        kind, devices = match["kind"], _group_size(line, total)
        sizes = [_bytes(dtype, dims) for dtype, dims in _SHAPE.findall(match["result"])]
        if match["start"] and kind in ("all-gather", "collective-permute"):
            # The result of the asynchronous form holds its operands first, then what they become.
            sizes = sizes[len(sizes) // 2 :] if kind == "all-gather" else sizes[1:2]
        payload = sum(sizes) * (devices if kind == "reduce-scatter" else 1)
        found.append(Collective(kind, devices, payload))
    return found


def bytes_sent(compiled: Any) -> float:
    """Bytes that each device sends to others in one run of a compiled program: see `Collective.sent`."""
    return math.fsum(operation.sent for operation in collectives(compiled))


def count_kinds(operations: Iterable[Collective], at_least: int = 0) -> dict[str, int]:
    """How many collectives of each kind have a payload of `at_least` bytes."""
    counts: dict[str, int] = {}
    for operation in operations:
        if operation.payload >= at_least:
            counts[operation.kind] = counts.get(operation.kind, 0) + 1
    return counts


def _bytes(dtype: str, dims: str) -> int:
    if dtype == "token":
        return 0
    digits = re.search(r"\d+", dtype)
    bits = _BITS.get(dtype) or (int(digits.group()) if digits else 8)
    count = math.prod(int(dim) for dim in dims.split(",")) if dims else 1
    return -(-count * bits // 8)


def _group_size(line: str, total: int) -> int:
    listed, iota, mesh = _GROUPS_LIST.search(line), _GROUPS_IOTA.search(line), _GROUPS_MESH.search(line)
    if iota:
        return int(iota[2])
    if mesh:  # along axes of a mesh, each by its name, or as name:(what lies before)size for a part of one
        sizes = dict(re.findall(r"'([^']*)'=(\d+)", mesh["mesh"]))
        axes = re.findall(r"'([^']*)'(?::\(\d+\)(\d+))?", mesh["axes"])
        return math.prod(int(part or sizes[name]) for name, part in axes)
    return len(listed[1].split(",")) if listed and listed[1] else total


def _num_partitions(text: str) -> int:
    header = text[: text.find("\n")]
    found = [int(number) for number in re.findall(r"(?:num_partitions|replica_count)=(\d+)", header)]
    return math.prod(found) if found else 1
