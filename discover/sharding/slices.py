"""How a tree of parameters is cut into one slice per device, and what moves between devices to do so.

A parameter is flattened, padded with zeros to a multiple of the D devices of the data axis, and device i holds the
i-th part: any shape divides evenly, at the price of at most D − 1 zeros a parameter. (Where the state has 8-bit buffers
a part is whole blocks of them, at the price of up to 128 zeros for each device.) A parameter that is itself sharded
over other axes of the mesh (model parallelism) is cut the same way within each of its shards, so that nothing ever
moves along those axes.

The slices of a parameter, put together, are its values in their usual order with the zeros at the end, whatever D is:
a checkpoint written on one number of devices is read on another by cutting or adding zeros. They form a tree like the
parameters', with the same paths and the same number of dimensions (all but the first of size 1), so that weight-decay
masks by name or by `ndim` mean the same on slices.

All leaves of one dtype travel together: one collective a step for each dtype, however many parameters there are.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from discover.gpu.host_memory import is_on_host
from discover.quantized import BLOCK, Quantized, is_quantized


class Leaf(NamedTuple):
    """One parameter: where it is sharded, and how long its slices are."""

    path: tuple[Any, ...]
    shape: tuple[int, ...]  # of one shard over the model axes: what a device of the data axis sees
    dtype: Any
    spec: P  # over the model axes
    axes: tuple[str, ...]  # the model axes in `spec`
    length: int  # of one device's slice, padding included

    @property
    def size(self) -> int:
        """Values in one shard, without padding."""
        return math.prod(self.shape)

    @property
    def slice_shape(self) -> tuple[int, ...]:
        """The shape of one device's slice: as many dimensions as the parameter has, and at least one."""
        return (self.length,) + (1,) * (len(self.shape) - 1)


class Slices:
    """The slices of one tree of parameters over one mesh.

    Args:
      params: the parameters, or anything with their shapes and dtypes.
      mesh: the device mesh, with axes of type Auto (what `jax.sharding.Mesh` makes).
      data_axis: the axis over which batches are spread.
      param_specs: a tree of `PartitionSpec` for parameters that are sharded over other axes; None: all replicated.
      multiple: the length of a slice is a multiple of it, see `slice_multiple`.

    Raises:
      ValueError: if the axis is not in the mesh, a parameter is sharded over it, or a shape does not divide.
    """

    def __init__(
        self, params: optax.Params, mesh: Mesh, data_axis: str = "data", param_specs: Any = None, *, multiple: int = 1
    ):
        check_mesh(mesh, data_axis)
        self.multiple = multiple
        self.mesh, self.axis, self.count = mesh, data_axis, mesh.shape[data_axis]
        flat, self.treedef = jax.tree_util.tree_flatten_with_path(params)
        if param_specs is None:
            specs = [P()] * len(flat)
        else:
            specs = jax.tree.leaves(param_specs, is_leaf=lambda node: isinstance(node, P))
            if len(specs) != len(flat):
                raise ValueError(
                    f"param_specs must have one PartitionSpec per parameter, got {len(specs)} for {len(flat)}"
                )
        self.leaves = [self._leaf(path, value, spec) for (path, value), spec in zip(flat, specs)]

    def _leaf(self, path: tuple[Any, ...], value: Any, spec: P) -> Leaf:
        name = jax.tree_util.keystr(path) or "the parameter"
        shape, axes = list(jnp.shape(value)), []
        for dim, entry in enumerate(spec):
            for axis in (entry,) if isinstance(entry, str) else (entry or ()):
                if axis == self.axis:
                    raise ValueError(
                        f"{name} is sharded over {axis!r}, the axis of the batches: parameters are whole on that "
                        "axis (their state is what gets sliced); shard them over another axis"
                    )
                if axis not in self.mesh.shape:
                    raise ValueError(f"{name} is sharded over {axis!r}; the mesh has {', '.join(self.mesh.axis_names)}")
                if shape[dim] % self.mesh.shape[axis]:
                    raise ValueError(
                        f"dimension {dim} of {name}, {jnp.shape(value)}, does not divide over the "
                        f"{self.mesh.shape[axis]} devices of axis {axis!r}"
                    )
                shape[dim] //= self.mesh.shape[axis]
                axes.append(axis)
        length = -(-math.prod(shape) // (self.count * self.multiple)) * self.multiple
        return Leaf(tuple(path), tuple(shape), jnp.result_type(value), spec, tuple(axes), length)

    def find(self, path: tuple[Any, ...]) -> Leaf | None:
        """The parameter at a path; None if there is none."""
        return next((leaf for leaf in self.leaves if leaf.path == tuple(path)), None)

    def spec(self, leaf: Leaf, leading: int = 0) -> P:
        """The sharding of a leaf's slices, after `leading` axes that every device holds whole."""
        return P(*(None,) * leading, (*leaf.axes, self.axis))

    def start(self, leaf: Leaf) -> jax.Array:
        """Inside of a device: where in all the slices of a leaf its own begins."""
        return lax.axis_index((*leaf.axes, self.axis)) * leaf.length

    def cut(self, params: optax.Params) -> optax.Params:
        """Each device's slice of parameters that it holds whole: nothing moves."""

        def local(*values):
            index = lax.axis_index(self.axis)
            return tuple(
                lax.dynamic_index_in_dim(self._rows(leaf, value[None])[0], index, keepdims=False).reshape(
                    leaf.slice_shape
                )
                for leaf, value in zip(self.leaves, values)
            )

        return self._mapped(local, params, [leaf.spec for leaf in self.leaves], [self.spec(x) for x in self.leaves])

    def exchange(self, grads: optax.Updates, weights: jax.Array | None = None) -> optax.Updates:
        """From each device's groups' whole gradients to every device's slice of all of them: one all-to-all.

        Args:
          grads: leaves [G, ...], the groups spread over the data axis.
          weights: [D·S, G/D], to send S weighted sums of a device's groups instead of every group.

        Returns:
          Slices with leaves [G, ...] (or [D·S, ...]).
        """

        def local(weights, rows):
            rows = rows if weights is None else _weigh(weights, rows)
            return _as_bits(lambda x: lax.all_to_all(x, self.axis, split_axis=1, concat_axis=0, tiled=True), rows)

        return self._scattered(local, grads, weights)

    def reduce(self, grads: optax.Updates, weights: jax.Array) -> optax.Updates:
        """Every device's slice of the weighted sum over all groups: one reduce-scatter.

        Args:
          grads: leaves [G, ...], the groups spread over the data axis.
          weights: [G].

        Returns:
          Slices with leaves [1, ...].
        """

        def local(weights, rows):
            return lax.psum_scatter(_weigh(weights[None], rows), self.axis, scatter_dimension=1, tiled=True)

        return self._scattered(local, grads, weights)

    def _scattered(self, move: Callable[[Any, jax.Array], jax.Array], grads: Any, weights: Any) -> Any:
        def local(weights, *values):
            out: list[Any] = [None] * len(values)
            for members in self._by_dtype([value.dtype for value in values]):
                rows = jnp.concatenate([self._rows(self.leaves[i], values[i]) for i in members], axis=-1)
                moved = move(weights, rows)
                for i, part in zip(members, self._split(moved[:, 0], members)):
                    out[i] = part.reshape(part.shape[0], *self.leaves[i].slice_shape)
            return tuple(out)

        sources = [P(self.axis, *leaf.spec) for leaf in self.leaves]
        targets = [self.spec(leaf, leading=1) for leaf in self.leaves]
        return self._mapped(local, grads, sources, targets, extra=weights)

    def gather(self, slices: optax.Updates) -> optax.Updates:
        """The whole parameters (or updates) on every device, from the slices: one all-gather."""

        def local(*values):
            out: list[Any] = [None] * len(values)
            for members in self._by_dtype([value.dtype for value in values]):
                row = jnp.concatenate([values[i].reshape(1, -1) for i in members], axis=-1)
                rows = _as_bits(lambda x: lax.all_gather(x, self.axis, axis=0, tiled=True), row)
                for i, part in zip(members, self._split(rows, members)):
                    leaf = self.leaves[i]
                    out[i] = part.reshape(-1)[: leaf.size].reshape(leaf.shape)
            return tuple(out)

        return self._mapped(local, slices, [self.spec(x) for x in self.leaves], [leaf.spec for leaf in self.leaves])

    def on_each_device(
        self,
        leaf: Leaf,
        function: Callable[..., Any],
        whole: tuple[Any, ...],
        slices: tuple[jax.Array, ...],
        leading: tuple[int, ...],
    ) -> Any:
        """`function(*whole, *slices)` on every device, with its own slices of one parameter: nothing moves.

        Args:
          leaf: the parameter, see `find`.
          function: returns a tuple of arrays, slices again.
          whole: trees that every device holds whole.
          slices: arrays [..., *slice], like those of `cut`, `exchange` and of the state; `Quantized` is one, too.
          leading: for each result, the number of dimensions before those of a slice.
        """

        def leading_of(x: Any) -> int:
            return 1 if is_quantized(x) else jnp.ndim(x) - len(leaf.slice_shape)

        mapped = jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=(*(P() for _ in whole), *(self.spec(leaf, leading_of(x)) for x in slices)),
            out_specs=tuple(self.spec(leaf, count) for count in leading),
            check_vma=False,
        )
        return mapped(*whole, *slices)

    def place(self, state: optax.OptState) -> optax.OptState:
        """Keeps every part of an optimizer's state on its device: see `shardings`."""
        return jax.tree.map(lax.with_sharding_constraint, state, self.shardings(state))

    def shardings(self, state: Any) -> Any:
        """The sharding of each leaf of an optimizer's state made from slices.

        A leaf whose path ends in that of a parameter and whose shape ends in that of its slices is sharded
        like them, whatever stands before (as the N of the clusters' buffers), and so are 8-bit buffers; any other is
        whole everywhere.
        """

        def one(path: tuple[Any, ...], value: Any) -> Any:
            for leaf in self.leaves:
                if leaf.path and tuple(path[-len(leaf.path) :]) != leaf.path:
                    continue
                if is_quantized(value):
                    return Quantized(*(NamedSharding(self.mesh, self.spec(leaf, jnp.ndim(x) - 1)) for x in value))
                shape, whole = jnp.shape(value), (self.global_length(leaf), *leaf.slice_shape[1:])
                if len(shape) >= len(whole) and shape[len(shape) - len(whole) :] == whole:
                    return NamedSharding(self.mesh, self.spec(leaf, leading=len(shape) - len(whole)))
            return jax.tree.map(lambda _: NamedSharding(self.mesh, P()), value)

        return jax.tree_util.tree_map_with_path(one, state, is_leaf=is_quantized)

    def global_length(self, leaf: Leaf) -> int:
        """The first dimension of a leaf's slices put together, padding included."""
        return leaf.length * self.count * math.prod(self.mesh.shape[axis] for axis in leaf.axes)

    # -- inside of a device -------------------------------------------------------------------------------------------

    def _rows(self, leaf: Leaf, values: jax.Array) -> jax.Array:
        """[G, ...] as [G, D, length]: row i is what device i gets."""
        flat = values.reshape(values.shape[0], -1)
        flat = jnp.pad(flat, ((0, 0), (0, leaf.length * self.count - leaf.size)))
        return flat.reshape(values.shape[0], self.count, leaf.length)

    def _split(self, rows: jax.Array, members: list[int]) -> list[jax.Array]:
        ends = list(itertools.accumulate(self.leaves[i].length for i in members))
        return jnp.split(rows, ends[:-1], axis=-1)

    def _by_dtype(self, dtypes: list[Any]) -> list[list[int]]:
        names: dict[Any, list[int]] = {}
        for i, dtype in enumerate(dtypes):
            names.setdefault(jnp.dtype(dtype), []).append(i)
        return list(names.values())

    def _mapped(self, local: Any, tree: Any, sources: list[P], targets: list[P], extra: Any = ...) -> Any:
        leaves = self.treedef.flatten_up_to(tree)
        if not leaves:
            return tree
        if extra is not ...:
            sources = [P(self.axis), *sources]
            leaves = [extra, *leaves]
        mapped = jax.shard_map(
            local, mesh=self.mesh, in_specs=tuple(sources), out_specs=tuple(targets), check_vma=False
        )
        return self.treedef.unflatten(mapped(*leaves))


def slice_multiple(state: optax.OptState) -> int:
    """Of what the slices of an optimizer with such a state are a multiple: 8-bit buffers come in blocks."""
    if any(map(is_on_host, jax.tree.leaves(state, is_leaf=is_on_host))):
        raise ValueError("buffers on the host cannot be cut over devices: buffers must be 'device', got 'host'")
    return BLOCK if any(map(is_quantized, jax.tree.leaves(state, is_leaf=is_quantized))) else 1


def check_mesh(mesh: Mesh, data_axis: str) -> None:
    """Raises unless the mesh has the axis and leaves the partitioning of plain code to the compiler."""
    if data_axis not in mesh.shape:
        raise ValueError(f"the mesh has no axis {data_axis!r}; it has {', '.join(map(repr, mesh.axis_names))}")
    if any(kind != jax.sharding.AxisType.Auto for kind in mesh.axis_types):
        raise ValueError(
            "the mesh must have axes of type Auto, got "
            f"{', '.join(kind.name for kind in mesh.axis_types)}; jax.sharding.Mesh(devices, names) makes such a mesh"
        )


def _as_bits(move: Callable[[jax.Array], jax.Array], values: jax.Array) -> jax.Array:
    """Moves numbers of 16 bits as whole numbers: compilers without arithmetic for them would send them as 32 bits."""
    if values.dtype.itemsize != 2 or not jnp.issubdtype(values.dtype, jnp.floating):
        return move(values)
    return lax.bitcast_convert_type(move(lax.bitcast_convert_type(values, jnp.uint16)), values.dtype)


def _weigh(weights: jax.Array, rows: jax.Array) -> jax.Array:
    """[K, ...] to [S, ...] by weights [S, K]; a group that does not count may hold anything, NaN included."""
    wide = jnp.promote_types(rows.dtype, jnp.float32)
    counts = jnp.any(weights != 0, axis=0)  # also where a weight is NaN, the mark of a broken promise
    counted = jnp.where(counts[:, None, None], rows.astype(wide), 0)
    merged = jnp.einsum("sk,k...->s...", weights.astype(wide), counted, precision=lax.Precision.HIGHEST)
    return merged.astype(rows.dtype)
