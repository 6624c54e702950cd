"""What the three optimizers share: which cluster a batch is of, the memory of each parameter, and a step."""

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from discover.torch import ranks as processes
from discover.torch.batch import Batch, Seen
from discover.torch.checks import check_choice, check_group, check_size, dense, is_sharded, listed
from discover.torch.clusters import ClustersLike, Name, known, names_and_probs
from discover.torch.damping import places_of
from discover.torch.finite import all_finite
from discover.torch.part import Memory, Part, take
from discover.torch.ranks import Together
from discover.torch.rule import AFRESH, Number, Visit, rate_of, sum_afresh
from discover.torch.state import key_of, new_state, placed

COUNTED = {"steps": 0, "skipped": 0}
"""What is counted in every parameter group, so that it is in a `state_dict`."""


class ClusterOptimizer(Optimizer):
    """θ ← θ − μ·(u + λθ): `transform` makes u of the direction of (F1), and a subclass says what that is."""

    numbers: tuple[str, ...] = ()
    """The options that `transform` takes."""
    moments: tuple[str, ...] = ()
    """What `transform` may remember of a parameter."""

    def __init__(
        self, params: ParamsT, clusters: ClustersLike, ranks: str, skip_nonfinite: bool, options: dict[str, Any]
    ):
        names, self.probs = names_and_probs(clusters)
        self.ranks = check_choice("ranks", ranks, processes.RANKS)
        self.skip_nonfinite = check_choice("skip_nonfinite", skip_nonfinite, (False, True))
        self._batch = Batch()
        self._comparisons = processes.Comparisons()
        super().__init__(params, {**options, "clusters": names, **COUNTED})

    @property
    def clusters(self) -> tuple[Name, ...]:
        """The names of all clusters, in the order of `probs`."""
        return self.defaults["clusters"]

    @property
    def cluster(self) -> Name | None:
        """The cluster of this batch, to be set before each step; None when a step has taken it."""
        return self._batch.cluster

    @cluster.setter
    def cluster(self, name: Any) -> None:
        there = any(p.grad is not None for p in self._params())
        self._batch.name(None if name is None else known(name, self.clusters), there)

    @property
    def skipped(self) -> int:
        """How many groups were left out as their gradient was not finite; with `skip_nonfinite`."""
        return self.param_groups[0]["skipped"]

    @torch.no_grad()
    def collect(self, cluster: Any, size: float = 1) -> None:
        """Takes the gradients of the last backward, of the mean loss over one group, and clears them.

        Args:
          cluster: of the group.
          size: examples in the group, where groups differ in size.
        """
        name, grads = known(cluster, self.clusters), self._grads()
        examples = check_size(size)
        if not grads:
            raise RuntimeError("there are no gradients to collect: call `opt.collect(name)` after backward()")
        if self._counts(grads):
            self._batch.add(name, examples, grads)
        else:
            self._batch.left_out = True
        for p in grads:
            p.grad = None

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step. With a closure, the cluster is what is set after the closure has run.

        Raises:
          RuntimeError: if no cluster was set since the last step, or processes do not hold what `ranks` says.
        """
        loss = None
        if closure is not None:
            if not callable(closure):
                raise TypeError(f"step takes a closure or nothing, got {closure!r}: say `opt.cluster = name` before it")
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for part in self._parts(torch.compiler.is_compiling()):  # pyright: ignore[reportAttributeAccessIssue]
                take(part)
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As any optimizer's."""
        super().zero_grad(set_to_none)
        self._batch.gradients_are_gone()

    def new_memory(self, param: Tensor, options: dict[str, Any]) -> Memory:
        """What `transform` remembers of a parameter, before its first step."""
        return {}

    @staticmethod
    def transform(direction: list[Tensor], memory: list[Memory], options: dict[str, Any]) -> list[Tensor]:
        """u of the direction d, which it may use up."""
        return direction

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, also while training goes on.

        Raises:
          ValueError: if an option of the group is outside of its range, or a parameter is complex.
        """
        own = param_group.get("clusters", self.clusters)
        if own != self.clusters and (isinstance(own, tuple) or names_and_probs(own)[0] != self.clusters):
            raise ValueError("clusters are those of the whole optimizer: a parameter group cannot have its own")
        super().add_param_group({**param_group, "clusters": self.clusters})
        try:
            check_group(self.param_groups[-1], whole=self.ranks == "exchange")
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    def state_dict(self) -> dict[str, Any]:
        """As any optimizer's; the options of each parameter group have the names of the clusters."""
        self._wait_for_copies()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from a `state_dict`, bit by bit.

        Raises:
          ValueError: if it is of other clusters, or of another number of processes that exchange.
        """
        for group in state_dict["param_groups"]:
            if set(group.get("clusters", ())) != set(self.clusters):
                theirs, ours = (
                    f"{len(names)} ({listed(names)})" for names in (group.get("clusters", ()), self.clusters)
                )
                raise ValueError(f"the state is of other clusters: it has {theirs}, this optimizer {ours}")
            missing = [name for name in self.numbers if name not in group]
            if missing:
                raise ValueError(f"the state is of another optimizer: it has no {listed(missing)}")
        # Without the tensors: torch would round them to the parameter's dtype, and send all to its device.
        super().load_state_dict({**state_dict, "state": {}})
        saved = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        # In the order of the state, so that sums over clusters are rounded in the same way.
        probs = dict(zip(self.clusters, self.probs))
        self.defaults["clusters"] = tuple(self.param_groups[0]["clusters"])
        self.probs = tuple(probs[name] for name in self.clusters)
        for group in self.param_groups:
            group["clusters"] = self.clusters
            for p, key in zip(group["params"], saved):
                if key in state_dict["state"]:
                    self.state[p] = placed(state_dict["state"][key], p, self._own(p), group)

    def __getstate__(self) -> dict[str, Any]:
        self._wait_for_copies()
        own = {name: getattr(self, name) for name in ("probs", "ranks", "skip_nonfinite")}
        return {**super().__getstate__(), **own}  # pyright: ignore[reportAttributeAccessIssue]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.update({**COUNTED, **group})
        self.__dict__.setdefault("_batch", Batch())
        self.__dict__.setdefault("_comparisons", processes.Comparisons())

    @torch.compiler.disable  # it chooses tensors by name; what is then done with them is compiled once for all clusters
    def _parts(self, compiling: bool) -> list[Part]:
        """What the step does, in lists of parameters that are alike."""
        number = _in_tensor if compiling else _itself
        together = self._comparisons.begin(self.ranks, self._taken(), self.clusters, self._params())
        if together.sizes:
            self._count_step()
        return [
            self._part(params, group, together, number)
            for group in self.param_groups
            for params in _alike([p for p in group["params"] if p in together.params])
        ]

    def _taken(self) -> dict[Name, Seen]:
        """The clusters of the batch with their gradients; none where it is left out."""
        grads = self._grads()
        if self._batch.of_one_cluster and not self._counts(grads):
            self._batch.cluster, self._batch.left_out, grads = None, True, {}
        return self._batch.taken(grads)

    def _counts(self, grads: dict[Tensor, Tensor]) -> bool:
        """Whether a group takes part in the step."""
        if not self.skip_nonfinite:
            return True
        counts = all_finite(list(grads.values()), self._params()[0].device, everywhere=self.ranks == "same")
        for group in self.param_groups:
            group["skipped"] += not counts
        return counts

    def _count_step(self) -> None:
        """Once in `AFRESH` steps what was lost to rounding in ḡ is found again."""
        for group in self.param_groups:
            if group["steps"] and group["steps"] % AFRESH == 0:
                for params in _alike([p for p in group["params"] if p in self.state]):
                    states = [self.state[p] for p in params]
                    buffers = [[state[key_of(name)] for state in states] for name in self.clusters]
                    sum_afresh([state["mean"] for state in states], buffers, self.probs)
            group["steps"] += 1

    def _part(
        self, params: list[Tensor], group: dict[str, Any], together: Together, number: Callable[[Number], Number]
    ) -> Part:
        states = [self._state_of(p, group) for p in params]
        probs, beta, total = dict(zip(self.clusters, self.probs)), group["beta"], sum(together.sizes.values())
        visits = []
        for name, grads in together.gradients(params, group["l2"]):
            share = together.sizes[name] / total
            rate = rate_of(group["rate"], beta, share, probs[name])
            numbers = ((1 - group["nu"] * beta) * share, probs[name], rate)
            visits.append(Visit(grads, [state[key_of(name)] for state in states], *map(number, numbers)))
        dtype, device = states[0]["mean"].dtype, states[0]["mean"].device
        everyone, places = [], []  # whom damping looks at, and where
        if group["damping"] is not None and len(self.clusters) > 1:
            if any(map(is_sharded, params)):
                raise RuntimeError("damping needs whole parameters, and FSDP has sharded these: leave damping out")
            # Those of the batch first: to a compiled program all batches look alike.
            everyone = [*together.sizes, *(name for name in self.clusters if name not in together.sizes)]
            starts = [processes.start_of(p, self.ranks) for p in params]
            places = [places_of(*one) for one in zip(params, (state["mean"] for state in states), starts)]
        return Part(
            params=params,
            means=[state["mean"] for state in states],
            visits=visits,
            damping=group["damping"],
            # `non_blocking`, as it would wait for the GPU otherwise
            probs=torch.tensor([probs[name] for name in everyone], dtype=dtype).to(device, non_blocking=True),
            buffers=[[state[key_of(name)] for name in everyone] for state in states],
            places=places,
            transform=self.transform,
            memory=[{key: state[key] for key in self.moments if key in state} for state in states],
            options={name: group[name] for name in self.numbers},
            lr=number(group["lr"]),
            decay=group["weight_decay"],
            together=together,
        )

    def _state_of(self, p: Tensor, group: dict[str, Any]) -> Memory:
        state = self.state[p]
        if not state:
            state.update(new_state(p, self._own(p), self.clusters, group))
            state.update(self.new_memory(p, group))
        return state

    def _own(self, p: Tensor) -> Tensor:
        """A tensor like what this process remembers of a parameter."""
        return processes.slice_of(p) if self.ranks == "exchange" else p

    def _params(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _grads(self) -> dict[Tensor, Tensor]:
        return dense({p: p.grad for p in self._params() if p.grad is not None})

    def _wait_for_copies(self) -> None:
        """Until the buffers in the host's memory are what the last step made them."""
        for device in {p.device for g in self.param_groups if g["buffers"] == "cpu" for p in g["params"] if p.is_cuda}:
            torch.cuda.synchronize(device)


def _alike(params: list[Tensor]) -> Iterator[list[Tensor]]:
    """Lists of parameters of one dtype on one device: one launch serves all of a list."""
    lists: dict[Any, list[Tensor]] = {}
    for p in params:
        lists.setdefault((p.device, p.dtype), []).append(p)
    yield from lists.values()


def _itself(number: Number) -> Number:
    return number


def _in_tensor(number: Number) -> Number:
    return number if isinstance(number, Tensor) else torch.tensor(number, dtype=torch.float64)
