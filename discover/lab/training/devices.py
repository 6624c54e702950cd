"""Training on several devices, of one process or of many: where everything lies, and who computes what.

Groups are spread over the devices, each of which prepares its own examples and computes its own groups' gradients;
the optimizer's state is cut by parameter (`discover.sharding.optimizer`). Parameters are whole on every device.
"""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from discover.lab.training.errors import RunError
from discover.lab.training.placement import Placement
from discover.lab.training.program import ModelPrograms, Programs, over_members
from discover.lab.training.step import Hyper, StepBatch, StepMetrics, TrainState, clip_each
from discover.sharding.optimizer import shard_by_parameter, sharded_eval_params
from discover.sharding.slices import Slices

AXIS = "data"


def make_mesh(devices: str | int = "all") -> Mesh:
    """The devices to train on, in one row.

    Args:
        devices: how many of this process's devices, or `all`. With several processes it must be `all`.

    Raises:
        RunError: there are not so many, or not as many in each process.
    """
    everyone = jax.devices()
    each = collections.Counter(device.process_index for device in everyone)
    if len(set(each.values())) > 1:
        found = ", ".join(f"{each[who]} in process {who}" for who in sorted(each))
        raise RunError(f"all processes must have as many devices, got {found}")
    if devices == "all":
        return Mesh(np.array(everyone), (AXIS,))
    try:
        count = int(devices)
    except ValueError:
        raise RunError(f"the number of devices must be `all` or a whole number, got {devices!r}") from None
    if jax.process_count() > 1:
        raise RunError(f"with several processes all devices are used: give `all` as their number, not {count}")
    if not 1 <= count <= len(everyone):
        hint = ""
        if everyone[0].platform == "cpu" and count > 0:
            hint = f"; to simulate them on a CPU set XLA_FLAGS=--xla_force_host_platform_device_count={count}"
        raise RunError(f"the number of devices must be from 1 to {len(everyone)}, got {count}{hint}")
    return Mesh(np.array(everyone[:count]), (AXIS,))


class MeshPlacement(Placement):
    """Spreads groups and evaluation examples over the devices of a mesh.

    Every process hands over its own part only, and no other part ever reaches it.

    Args:
        mesh: the devices, see :func:`make_mesh`.
        on_dispatch: called whenever the batches of a dispatch are at hand.
    """

    def __init__(self, mesh: Mesh, *, on_dispatch: Callable[[], None] = lambda: None):
        super().__init__(mesh.devices.flat[0])
        self._on_dispatch = on_dispatch
        self.mesh, self.count = mesh, mesh.devices.size
        self.whole, self.spread = NamedSharding(mesh, P()), NamedSharding(mesh, P(AXIS))

    def check_groups(self, groups: int) -> None:
        """Raises unless the groups of a batch can be dealt out evenly."""
        if groups % self.count:
            near = -(-groups // self.count) * self.count
            raise RunError(
                f"batches.groups must be a multiple of the {self.count} devices, got {groups}; "
                f"try --set batches.groups={near}"
            )

    def data(self, array: Any) -> jax.Array:
        """Training examples travel with the batches that need them: nothing is kept on the devices."""
        del array
        return jax.make_array_from_callback((0,), self.whole, lambda _: np.zeros(0, np.float32))

    def split(self, images: Any, labels: Any) -> tuple[jax.Array, jax.Array]:
        """Examples to evaluate on, each device its part; label -1 marks padding."""
        padding = -len(labels) % self.count

        def place(array: Any, fill: int) -> jax.Array:
            rows = np.arange(len(array) + padding)

            def part(index: Any) -> np.ndarray:
                mine = rows[index[0]]
                values = np.asarray(array[np.minimum(mine, len(array) - 1)])
                if fill:
                    values = np.where(mine < len(array), values, fill).astype(array.dtype)
                return values

            return jax.make_array_from_callback((len(rows), *array.shape[1:]), self.spread, part)

        return place(images, 0), place(labels, -1)

    def split_own(self, images: Any, labels: np.ndarray, most: int) -> tuple[jax.Array, jax.Array]:
        """The same where every process has examples of its own; ``most``: the largest number that one of them has."""
        each = self.count // jax.process_count()
        padding = -(-most // each) * each - len(labels)
        pixels = np.pad(np.asarray(images), ((0, padding), *((0, 0),) * (images.ndim - 1)))
        numbers = np.pad(labels, (0, padding), constant_values=-1)
        return tuple(jax.make_array_from_process_local_data(self.spread, part) for part in (pixels, numbers))

    def batches(self, batches: Any) -> Any:
        """This process's part of the batches of one dispatch, leaves [steps, S, G/processes, ...]."""
        self._on_dispatch()
        sharding = NamedSharding(self.mesh, P(None, None, AXIS))
        return jax.tree.map(lambda a: jax.make_array_from_process_local_data(sharding, a), batches)

    def members(self, members: Any) -> Any:
        return jax.tree.map(lambda a: jax.make_array_from_process_local_data(self.whole, np.asarray(a)), members)

    def like(self, abstract: Any) -> Any:
        return jax.tree.map(
            lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), abstract, self.shardings(abstract)
        )

    def shardings(self, state: TrainState) -> TrainState:
        """Parameters whole everywhere, the optimizer's state in slices; leaves [M, ...]."""
        slices = self._slices(state.params)
        return TrainState(jax.tree.map(lambda _: self.whole, state.params), slices.shardings(state.opt_state))

    def lengths(self, state: TrainState) -> tuple[tuple[int, int] | None, ...]:
        """For each leaf the (axis, length) of its slices without the zeros at their end; None where there are none.

        What is so cut, and flattened, has the same numbers in the same order on any number of devices.
        """
        sizes = {leaf.path: leaf.size for leaf in self._slices(state.params).leaves}
        result: list[tuple[int, int] | None] = []
        for path, sharding in jax.tree_util.tree_flatten_with_path(self.shardings(state))[0]:
            axis = len(sharding.spec) - 1  # of the slices: the last one that a spec names
            owner = max((p for p in sizes if not p or tuple(path[-len(p) :]) == p), key=len, default=None)
            result.append(None if axis < 0 or owner is None else (axis, sizes[owner]))
        return tuple(result)

    def _slices(self, params: Any) -> Slices:
        """Slices of one member's parameters, given those of all, leaves [M, ...]."""
        one = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape[1:], p.dtype), params)
        return Slices(one, self.mesh, AXIS)

    def step_over_devices(self, local: Callable[..., Any]) -> Callable[..., Any]:
        """Runs ``local(params, batch, images, keys, keys)`` on each device with its own groups; leaves [G, ...]."""
        groups, whole = P(AXIS), P()
        return jax.shard_map(
            local,
            mesh=self.mesh,
            in_specs=(whole, groups, whole, groups, groups),
            out_specs=groups,
            check_vma=False,
        )


def optimizer_over_devices(
    make_optimizer: Callable[[Hyper], optax.GradientTransformationExtraArgs],
    mesh: Mesh,
    *,
    merge_groups: bool,
    clusters_per_device: int | None = None,
    exchange_dtype: Any = None,
) -> Callable[[Hyper], optax.GradientTransformationExtraArgs]:
    """The same optimizers with their state in slices; they also clip, since only they see the batch's mean.

    Args:
        make_optimizer: of one device.
        mesh: the devices.
        merge_groups: send the mean of the groups only.
        clusters_per_device: see :func:`discover.sharding.optimizer.shard_by_parameter`.
        exchange_dtype: see there.
    """

    def make(hyper: Hyper) -> optax.GradientTransformationExtraArgs:
        inner = make_optimizer(hyper)

        def clipped(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
            return inner.update(clip_each(updates, hyper["clip_norm"]), state, params, **extra)

        chosen = optax.GradientTransformationExtraArgs(inner.init, clipped) if "clip_norm" in hyper else inner
        # Clipping is of each group's gradient: groups must not be averaged before.
        merged = None if merge_groups or "clip_norm" in hyper else clusters_per_device
        return shard_by_parameter(
            chosen,
            mesh,
            data_axis=AXIS,
            exchange="mean" if merge_groups else "groups",
            clusters_per_device=merged,
            exchange_dtype=exchange_dtype,
        )

    return make


def evaluate_over_devices(
    apply: Callable[..., jax.Array], scale: Callable[[jax.Array], jax.Array], mesh: Mesh, *, batch_size: int
) -> Callable[[Any, jax.Array, jax.Array], StepMetrics]:
    """``evaluate(params, images, labels)`` as :func:`discover.lab.training.evaluate.make_evaluate` has it.

    Each device computes its own part, of which label -1 marks the padding.
    """

    def sums(params: Any, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = apply(params, scale(images))
        counts = labels >= 0
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, jnp.maximum(labels, 0))
        right = (jnp.argmax(logits, axis=-1) == labels) & counts
        return jnp.sum(jnp.where(counts, losses, 0)), jnp.sum(right)

    def local(params: Any, images: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        size = min(batch_size, len(labels))
        missing = -len(labels) % size
        images = jnp.pad(images, ((0, missing), *((0, 0),) * (images.ndim - 1)))
        labels = jnp.pad(labels, (0, missing), constant_values=-1)
        batches = (images.reshape(-1, size, *images.shape[1:]), labels.reshape(-1, size))
        losses, rights = lax.map(lambda batch: sums(params, *batch), batches)
        totals = jnp.sum(losses), jnp.sum(rights), jnp.sum(labels >= 0)
        return lax.psum(totals, AXIS)

    spread = jax.shard_map(local, mesh=mesh, in_specs=(P(), P(AXIS), P(AXIS)), out_specs=P(), check_vma=False)

    def evaluate(params: Any, images: jax.Array, labels: jax.Array) -> StepMetrics:
        loss, right, count = spread(params, images, labels)
        return StepMetrics(loss / count, right / count)

    return evaluate


class MeshModelPrograms(ModelPrograms):
    """:class:`ModelPrograms` whose results are whole on every device."""

    def __init__(self, placement: MeshPlacement, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        start, judge = self.jitted_start, self._judge
        self.jitted_start = jax.jit(start, out_shardings=placement.whole)
        self._judge = jax.jit(judge, out_shardings=placement.whole)


class MeshPrograms(Programs):
    """:class:`Programs` whose states keep their place: what one call returns, the next one takes."""

    def __init__(self, placement: MeshPlacement, *arguments: Any, **options: Any):
        super().__init__(*arguments, **options)
        mode = options.get("member_mode", "vmap")
        start, advance = self._start, self._advance

        def placed_start(params: Any, hyper: Hyper) -> Any:
            return _place(TrainState(params, start(params, hyper)), placement).opt_state

        def placed_advance(state: TrainState, *rest: Any) -> tuple[TrainState, StepMetrics]:
            state, metrics = advance(state, *rest)
            return _place(state, placement), lax.with_sharding_constraint(metrics, placement.whole)

        def eval_params(state: TrainState) -> Any:
            def one(opt_state: Any, params: Any) -> Any:
                return sharded_eval_params(opt_state, params, placement.mesh, data_axis=AXIS)

            return over_members(mode, one, (state.opt_state, state.params))

        self._start = jax.jit(placed_start)
        self._advance = jax.jit(placed_advance, donate_argnums=0)
        self._eval_params = jax.jit(eval_params, out_shardings=placement.whole)

    def eval_params(self, state: TrainState) -> Any:
        return self._compiled.call("eval_params", self._eval_params, state)


def _place(state: TrainState, placement: MeshPlacement) -> TrainState:
    return jax.tree.map(lax.with_sharding_constraint, state, placement.shardings(state))


def draw_examples(draw: Callable[[int, int], StepBatch], images: Any) -> Callable[[int, int], StepBatch]:
    """Batches that carry their examples instead of where they are: `indices` becomes the images [..., b, ...]."""

    def drawn(first: int, count: int) -> StepBatch:
        batch = draw(first, count)
        return batch._replace(indices=images[batch.indices])  # pyright: ignore[reportArgumentType]

    return drawn
