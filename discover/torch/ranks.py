"""Several processes: they hold one cluster and averaged gradients, or each its own, and then exchange slices.

With D processes (`ranks="exchange"`), P parameters, and S clusters on each process:

    1. the sizes of all clusters on all processes, and which parameters have gradients: a few numbers;
    2. an all-to-all hands every process its slice of all clusters' gradients, S·P·(D − 1)/D values sent by each;
    3. the rule works on slices: each process holds its slice of ḡ and of all N buffers, (N + 1)·P/D values;
    4. an all-gather returns the direction, P·(D − 1)/D values.

With S = 1 that is what DDP's all-reduce sends, 2P·(D − 1)/D. Steps 2 to 4 are those of `discover.sharding`.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from discover.torch.batch import Seen, wide_dtype
from discover.torch.clusters import Name

RANKS = ("same", "exchange", "alone")
EVERY_STEP_UNTIL, THEN_EVERY = 10, 100


def local_gradients(state: Any, bucket) -> torch.futures.Future[Tensor]:  # DDP takes no other types than these
    """A hook for DDP that leaves each process its own gradients: `ddp.register_comm_hook(None, local_gradients)`."""
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


class Together:
    """What one step of a process by itself works with."""

    def __init__(self, seen: dict[Name, Seen]):
        self.seen = seen
        self.sizes: dict[Name, float] = {name: one.size for name, one in seen.items()}
        self.params = {p for one in seen.values() for p in one.grads}

    def gradients(self, params: list[Tensor], l2: float) -> Iterator[tuple[Name, list[Tensor]]]:
        """ĝ_n + λ₂θ of each cluster in the batch; 0 for ĝ_n where only other clusters reach a parameter."""
        for name, (_, found) in self.seen.items():
            grads = [found[p] if p in found else torch.zeros_like(p, dtype=wide_dtype(p)) for p in params]
            yield name, torch._foreach_add(grads, params, alpha=l2) if l2 else grads  # pyright: ignore[reportReturnType]

    def whole(self, direction: list[Tensor], params: list[Tensor]) -> list[Tensor]:
        """The direction of all of each parameter."""
        return direction

    def total(self, partial: Tensor) -> Tensor:
        """A sum over all numbers of a parameter, from the sum over those that are here."""
        return partial


class Exchange(Together):
    """The same for a process that knows a slice of every cluster's gradients."""

    def __init__(self, seen: dict[Name, Seen], names: Sequence[Name], rows: list[list[float]], params: list[Tensor]):
        super().__init__(seen)
        self.names, self.world = names, len(rows)
        self.rows = rows  # of each process: the sizes of all clusters in it
        totals = [sum(row[n] for row in rows) for n in range(len(names))]
        self.sizes = {name: size for name, size in zip(names, totals) if size}
        self.params = {p for number, p in enumerate(params) if any(row[len(names) + number] for row in rows)}

    def gradients(self, params: list[Tensor], l2: float) -> Iterator[tuple[Name, list[Tensor]]]:
        """This process's slices of ĝ_n + λ₂θ of each cluster that any process holds."""
        found = dict(super().gradients(params, l2))
        lengths = [_slice_length(p, self.world) for p in params]
        sent = [_cut(found[name], self.world) for name in self.names if name in found]  # of each [D, L]
        held = [[n for n in range(len(self.names)) if row[n]] for row in self.rows]
        length = sum(lengths)
        nothing = params[0].new_empty(0, dtype=wide_dtype(params[0]))
        out = torch.stack(sent, 1).flatten() if sent else nothing
        received = out.new_empty(sum(map(len, held)) * length)
        splits = [len(clusters) * length for clusters in held]
        dist.all_to_all_single(received, out, splits, [len(sent) * length] * self.world)
        means: dict[int, Tensor] = {}
        pieces = iter(received.view(-1, length))
        for rank, clusters in enumerate(held):
            for n in clusters:
                part = next(pieces) * (self.rows[rank][n] / self.sizes[self.names[n]])
                means[n] = means[n] + part if n in means else part
        for n in sorted(means):
            yield self.names[n], list(means[n].split(lengths))

    def whole(self, direction: list[Tensor], params: list[Tensor]) -> list[Tensor]:
        """The direction of all of each parameter, from every process's slices."""
        own = torch.cat(direction)
        together = own.new_empty(self.world * len(own))
        all_gather(together, own)
        pieces = together.view(self.world, -1).split([len(d) for d in direction], 1)
        return [piece.flatten()[: p.numel()].view(p.shape) for piece, p in zip(pieces, params)]

    def total(self, partial: Tensor) -> Tensor:
        """The sum over the slices of all processes."""
        dist.all_reduce(partial)
        return partial


class Comparisons:
    """Begins each step, and asks the other processes whether they hold what they should."""

    def __init__(self) -> None:
        self.steps = 0
        self.own_gradients = False  # whether processes with different clusters were seen to have different gradients

    def begin(self, ranks: str, seen: dict[Name, Seen], names: Sequence[Name], params: list[Tensor]) -> Together:
        """A step of this process, or of all together.

        Raises:
          RuntimeError: if processes that should hold one cluster do not, or DDP has averaged what should be exchanged.
        """
        alone = ranks == "alone" or _world() == 1
        self.steps += 1
        if alone or (ranks == "same" and self.steps > EVERY_STEP_UNTIL and self.steps % THEN_EVERY):
            return Together(seen)
        sizes = [seen[name].size if name in seen else 0.0 for name in names]
        reached = [float(any(p in one.grads for one in seen.values())) for p in params] if ranks == "exchange" else []
        rows = _told([*sizes, *reached], self._length(seen) if ranks == "exchange" else None, params[0].device)
        held = [[name for name, size in zip(names, row) if size] for row in rows]
        different = [rank for rank in range(len(rows)) if rows[rank][: len(names)] != rows[0][: len(names)]]
        if ranks == "same":
            if different:
                what, instead, shown = "clusters", "Draw one cluster for all", held
                if held[0] == held[different[0]]:
                    what, instead = "sizes of groups", "Give `collect` one size in all"
                    shown = [dict(zip(here, filter(None, row))) for here, row in zip(held, rows)]
                raise RuntimeError(
                    f"the processes hold different {what}: {shown[0]} in rank 0, {shown[different[0]]} in rank "
                    f"{different[0]}, and DDP or FSDP has averaged their gradients. {instead}; or make "
                    "the optimizer with ranks='exchange' and keep gradients local, with DDP's no_sync() or "
                    "ddp.register_comm_hook(None, discover.torch.local_gradients)"
                )
            return Together(seen)
        if different and not self.own_gradients:
            lengths = [row[-1] for row in rows]
            for rank in different:
                if lengths[rank] == lengths[0] > 0:
                    raise RuntimeError(
                        f"rank 0 with {held[0]} and rank {rank} with {held[rank]} have the same gradients: DDP has "
                        "averaged them already. Run backward() inside of ddp.no_sync(), or "
                        "ddp.register_comm_hook(None, discover.torch.local_gradients)"
                    )
            self.own_gradients = True
        return Exchange(seen, names, rows, params)

    def _length(self, seen: dict[Name, Seen]) -> Tensor | None:
        """Tells one process's gradients from another's; None once that is known."""
        grads = [g for one in seen.values() for g in one.grads.values()]
        return None if self.own_gradients or not grads else torch.stack(torch._foreach_norm(grads)).double().norm()


def slice_of(p: Tensor) -> Tensor:
    """A tensor like this process's slice of a parameter; of one process, the parameter."""
    world = _world()
    return p.new_empty(_slice_length(p, world)) if world > 1 else p


def start_of(p: Tensor, ranks: str) -> int | None:
    """Where this process's slice of a flattened parameter begins; None: it has all of it."""
    world = _world()
    return dist.get_rank() * _slice_length(p, world) if ranks == "exchange" and world > 1 else None


def _world() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def _slice_length(p: Tensor, world: int) -> int:
    return math.ceil(p.numel() / world)


def _cut(tensors: list[Tensor], world: int) -> Tensor:
    """Slices of all tensors side by side, [D, L]; zeros are added where D does not divide a tensor."""
    padded = []
    for one in tensors:
        length = _slice_length(one, world)
        padded.append(torch.nn.functional.pad(one.reshape(-1), (0, length * world - one.numel())).view(world, length))
    return torch.cat(padded, 1)


def _told(numbers: list[float], last: Tensor | None, device: torch.device) -> list[list[float]]:
    """The numbers of every process, and its last one, which may be on a GPU."""
    own = torch.tensor([*numbers, 0.0], dtype=torch.float64, device=device)
    if last is not None:
        own[-1] = last
    every = own.new_empty(dist.get_world_size() * len(own))
    all_gather(every, own)
    return every.view(-1, len(own)).tolist()


def all_gather(every: Tensor, own: Tensor) -> None:
    """Every process's tensor, one after the other; the function has had two names in torch."""
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    gather(every, own)
