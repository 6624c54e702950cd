"""The devices of a run: where everything lies, and who computes what.

One device is the simplest case: the data set lies on it, batches are rows of that, and nothing has to move. On several,
of one process or of many, each device prepares the examples of its own groups and computes their gradients. Examples
then travel with their batches, parameters are whole on every device, and the optimizer's state is cut into one slice
per device (`discover.sharding`).
"""

from __future__ import annotations

import collections
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, Sharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from discover.gpu.host_memory import is_on_host
from discover.lab.data.limits import free_memory
from discover.lab.training.errors import RunError
from discover.quantized import BLOCK, WORD, is_quantized
from discover.sharding import Slices
from discover.sharding.slices import slice_multiple

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from discover.lab.data import Examples
    from discover.lab.training.step import StepBatch, TrainState

AXIS = "data"
"""The name of the row of devices."""

T = TypeVar("T")
Function = TypeVar("Function", bound=Callable[..., Any])


class Devices:
    """One device, or several in a row.

    Every process hands over its own part only, and no other part ever reaches it.

    Args:
        which: how many of this process's devices, or `all`. With several processes it must be `all`.

    Raises:
        RunError: there are not so many, or not as many in each process.
    """

    def __init__(self, which: str | int = 1):
        self.mesh = _mesh(which)
        self.count = self.mesh.devices.size
        self.several = self.count > 1
        self.whole = self._sharding(P())
        """Everything on every device."""
        self._spread = self._sharding(P(AXIS))

    def _sharding(self, spec: P) -> Sharding:
        # Not a mesh of one: the compiler would be told about partitions that there are none of.
        return NamedSharding(self.mesh, spec) if self.several else SingleDeviceSharding(self.mesh.devices.item())

    def check_groups(self, groups: int) -> None:
        """Raises unless the groups of a batch can be dealt out evenly."""
        if groups % self.count:
            near = -(-groups // self.count) * self.count
            raise RunError(
                f"batches.groups must be a multiple of the {self.count} devices, got {groups}; "
                f"try --set batches.groups={near}"
            )

    # -- what is put where --------------------------------------------------------------------------------------------

    def put_everywhere(self, tree: Any) -> Any:
        """Arrays that every device needs whole."""
        return jax.make_array_from_process_local_data(self.whole, tree)

    def put_training_examples(self, images: Examples) -> jax.Array:
        """The training examples, where they stay on the device; nothing where they travel with their batches."""
        return self.put_everywhere(np.zeros(0, np.float32) if self.several else images)

    def put_batches(self, batches: StepBatch, images: Examples) -> StepBatch:
        """This process's part of the batches of a dispatch, leaves [steps, S, G/processes, ...]."""
        if self.several:
            batches = batches._replace(examples=images[batches.examples])
        return jax.make_array_from_process_local_data(self._sharding(P(None, None, AXIS)), batches)

    def put_split(self, images: Examples, labels: NDArray) -> tuple[jax.Array, jax.Array]:
        """Examples to evaluate on, each device its part; label -1 marks padding, which one device needs none of."""
        padding = -len(labels) % self.count

        def place(array: Any, fill: int) -> jax.Array:
            rows = np.arange(len(array) + padding)

            def part(index: Any) -> np.ndarray:
                mine = rows[index[0]]
                values = np.asarray(array[np.minimum(mine, len(array) - 1)])
                if fill:
                    values = np.where(mine < len(array), values, fill).astype(array.dtype)
                return values

            return jax.make_array_from_callback((len(rows), *array.shape[1:]), self._spread, part)

        return place(images, 0), place(labels, -1)

    def put_own_split(self, images: Examples, labels: np.ndarray, most: int) -> tuple[jax.Array, jax.Array]:
        """The same where every process has examples of its own; ``most``: the largest number that one of them has."""
        each = self.count // jax.process_count()
        padding = -(-most // each) * each - len(labels)
        pixels = np.pad(np.asarray(images), ((0, padding), *((0, 0),) * (images.ndim - 1)))
        numbers = np.pad(labels, (0, padding), constant_values=-1)
        return jax.make_array_from_process_local_data(self._spread, (pixels, numbers))

    # -- the state of training, leaves [M, ...] -----------------------------------------------------------------------

    def shardings(self, state: TrainState) -> TrainState:
        """Parameters whole everywhere, the optimizer's state in slices."""
        if not self.several:
            return jax.tree.map(self._whole, state, is_leaf=is_on_host)
        slices = self._slices(state)
        return state._replace(
            params=jax.tree.map(lambda _: self.whole, state.params), opt_state=slices.shardings(state.opt_state)
        )

    def _whole(self, part: Any) -> Any:
        """Where a part of the state lies that is not cut: beside the parameters, or in the host's memory."""
        if is_on_host(part):
            return jax.tree.map(lambda _: self.whole.with_memory_kind("pinned_host"), part)
        return self.whole

    def like(self, state: TrainState) -> TrainState:
        """Shapes with shardings: says where each array goes when a state is restored."""
        return jax.tree.map(
            lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), state, self.shardings(state)
        )

    def memory(self, state: TrainState) -> tuple[int, int]:
        """The bytes that a state takes on a device, and those that are free there."""
        leaves = [one for one in jax.tree.leaves(self.like(state)) if one.sharding.memory_kind != "pinned_host"]
        need = sum(math.prod(one.sharding.shard_shape(one.shape)) * one.dtype.itemsize for one in leaves)
        own = self.mesh.local_devices
        known = own[0].memory_stats() or {}
        if "bytes_limit" in known:
            return need, known["bytes_limit"] - known.get("bytes_in_use", 0)
        return need, free_memory() // len(own)  # a CPU's is the host's

    def lengths(self, state: TrainState) -> tuple[tuple[int, int] | None, ...] | None:
        """For each leaf the (axis, length) of its slices without the zeros at their end; None where there are none.

        What is so cut, and flattened, has the same numbers in the same order on any number of devices.
        """
        if not self.several:
            return None
        sizes = {leaf.path: leaf.size for leaf in self._slices(state).leaves}
        result: list[tuple[int, int] | None] = []
        found, _ = jax.tree_util.tree_flatten_with_path(self.shardings(state), is_leaf=is_quantized)
        for path, shardings in found:
            owner = max((p for p in sizes if not p or tuple(path[-len(p) :]) == p), key=len, default=None)
            parts = zip(shardings, (WORD, BLOCK)) if is_quantized(shardings) else [(shardings, 1)]
            for sharding, numbers in parts:
                axis = len(sharding.spec) - 1  # of the slices: the last one that a spec names
                result.append(None if axis < 0 or owner is None else (axis, -(-sizes[owner] // numbers)))
        return tuple(result)

    def _slices(self, state: TrainState) -> Slices:
        """Slices of one member's parameters, given the state of all."""
        one = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape[1:], p.dtype), state.params)
        return Slices(one, self.mesh, AXIS, multiple=slice_multiple(state.opt_state))

    # -- inside of compiled code --------------------------------------------------------------------------------------

    def keep_in_place(self, state: TrainState) -> TrainState:
        """A state whose arrays stay where they are: what one call returns, the next one takes."""
        return jax.tree.map(lax.with_sharding_constraint, state, self.shardings(state)) if self.several else state

    def keep_everywhere(self, tree: T) -> T:
        """Numbers that every process reads."""
        return lax.with_sharding_constraint(tree, self.whole) if self.several else tree

    def each_with_its_groups(self, function: Function) -> Function:
        """``function(params, images, *groups)`` on each device, with its own groups of arrays [G, ...]."""
        return self._on_each(function, whole=2, out=P(AXIS)) if self.several else function

    def sum_of_parts(self, function: Function) -> Function:
        """``function(params, *examples)``, a tree of sums: of each device's part of the examples, added up."""
        if not self.several:
            return function
        return self._on_each(lambda *own: lax.psum(function(*own), AXIS), whole=1, out=P())

    def _on_each(self, function: Callable[..., Any], *, whole: int, out: P) -> Any:
        """On each device: the first ``whole`` arguments are the same for all, of the others each has its part."""

        def over_devices(*arguments: Any) -> Any:
            specs = tuple(P() if place < whole else P(AXIS) for place in range(len(arguments)))
            mapped = jax.shard_map(function, mesh=self.mesh, in_specs=specs, out_specs=out, check_vma=False)
            return mapped(*arguments)

        return over_devices


def _mesh(which: str | int) -> Mesh:
    everyone = jax.devices()
    each = collections.Counter(device.process_index for device in everyone)
    if len(set(each.values())) > 1:
        found = ", ".join(f"{each[who]} in process {who}" for who in sorted(each))
        raise RunError(f"all processes must have as many devices, got {found}")
    if which == "all":
        return Mesh(np.array(everyone), (AXIS,))
    try:
        count = int(which)
    except ValueError:
        raise RunError(f"the number of devices must be `all` or a whole number, got {which!r}") from None
    if jax.process_count() > 1:
        raise RunError(f"with several processes all devices are used: give `all` as their number, not {count}")
    if not 1 <= count <= len(everyone):
        hint = ""
        if everyone[0].platform == "cpu" and count > 0:
            hint = f"; to simulate them on a CPU set XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        raise RunError(f"the number of devices must be from 1 to {len(everyone)}, got {count}{hint}")
    # One device: the one that JAX would take, which `jax.default_device` may have changed.
    chosen = everyone[:count] if count > 1 else list(jnp.zeros(()).devices())
    return Mesh(np.array(chosen), (AXIS,))
