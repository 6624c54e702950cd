r"""Many devices: the optimizer's state cut by parameter, and no more sent than momentum sends.

Groups are spread over the devices of the mesh's data axis; each device computes the gradients of its own groups. Then

    1. an all-to-all hands every device its slice of all groups' gradients;
    2. the rule (`rule.py`, or any other optimizer here) works on slices, locally: each device holds its slice of
       ḡ and of all N clusters' buffers, N·P/D values of them;
    3. an all-gather returns the update.

With P parameters on D devices and one group on each, 1. and 3. send P·(D − 1)/D values a device each: together exactly
what the all-reduce of a data-parallel momentum step sends, 2P·(D − 1)/D, whatever N is. Which clusters are where does
not matter and may change at every step. `docs/scaling.md` does the arithmetic, also for several groups a device.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import ArrayLike, DTypeLike

from discover.checks import check_choice, check_cluster_ids, check_group_axis, check_group_sizes
from discover.context import Context
from discover.groups import group_value_and_grad
from discover.optimizers.igt import igt_eval_params
from discover.sharding.slices import Slices, check_mesh, slice_multiple

_Batch = TypeVar("_Batch")
EXCHANGES = ("groups", "mean")
"""What the devices tell each other: the gradient of every group, or only their mean (enough for plain optimizers)."""


def shard_by_parameter(
    inner: optax.GradientTransformation,
    mesh: Mesh,
    *,
    data_axis: str = "data",
    param_specs: Any = None,
    exchange: str = "groups",
    clusters_per_device: int | None = None,
    exchange_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    """An optimizer of this library with its state cut by parameter over the devices of a mesh.

    The result is called like `inner` itself, with the same trajectory to rounding: gradients with leaves [G, ...]
    (best computed by `sharded_group_value_and_grad`, which leaves each group's on its device), updates shaped and
    placed like the parameters. Only the state looks different: its leaves are slices (`slices.py`). Weight-decay masks
    by name or by number of dimensions work as ever; an inner optimizer that looks at whole shapes, as
    `optax.adafactor` does, would not.

    Args:
      inner: any optimizer of this library, or `optax.chain(mean_over_groups(), ...)` around another.
      mesh: the device mesh, with axes of type Auto (what `jax.sharding.Mesh` makes).
      data_axis: the axis over which the groups are spread.
      param_specs: a tree of `PartitionSpec` for parameters that are themselves sharded over other axes.
      exchange: "groups" sends every group's gradient, for the Discover family. "mean" sends their mean only, by
        reduce-scatter, for optimizers that begin with it; it sends 2P·(D − 1)/D however many groups there are.
      clusters_per_device: the most clusters that the groups of one device come from in one batch. Groups of one
        cluster are averaged on their device before they are sent: S·P·(D − 1)/D values for S clusters a device. None
        sends every group on its own. A batch that breaks the promise turns the update into NaN, so that it cannot
        pass unnoticed.
      exchange_dtype: sends gradients in another dtype, for instance `jnp.bfloat16` for half the bytes. None keeps
        theirs.

    Returns:
      An `optax.GradientTransformationExtraArgs`. Its update needs `params`.

    Raises:
      ValueError: if the mesh lacks the axis, a parameter is sharded over it, or G is not a multiple of its size.

    Example:
      >>> import jax, numpy as np, discover
      >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("data",))
      >>> tx = shard_by_parameter(discover.discover(0.1, discover.Clusters.uniform(2)), mesh)
      >>> params = {"w": jnp.zeros(3)}
      >>> state = tx.init(params)
      >>> grads = {"w": jnp.ones((2, 3))}
      >>> updates, state = tx.update(grads, state, params, cluster_ids=jnp.array([0, 1]))
      >>> updates["w"].shape
      (3,)
    """
    check_mesh(mesh, data_axis)
    check_choice("exchange", exchange, EXCHANGES)
    if clusters_per_device is not None and clusters_per_device < 1:
        raise ValueError(f"clusters_per_device must be None or at least 1, got {clusters_per_device}")
    inner = optax.with_extra_args_support(inner)
    devices = mesh.shape[data_axis]

    def layout(params):
        multiple = slice_multiple(jax.eval_shape(inner.init, params))
        return Slices(params, mesh, data_axis, param_specs, multiple=multiple)

    @jax.jit
    def init(params):
        slices = layout(params)
        return slices.place(inner.init(slices.cut(params)))

    def update(updates, state, params=None, *, cluster_ids=None, group_sizes=None, **extra):
        if params is None:
            raise ValueError("shard_by_parameter needs the parameters: call tx.update(grads, state, params, ...)")
        num_groups = _count_groups(updates, params, devices, data_axis)
        everywhere = NamedSharding(mesh, P())  # a few bytes each, and every device needs all of them
        sizes = None
        if group_sizes is not None:
            sizes = jax.lax.with_sharding_constraint(check_group_sizes(group_sizes, num_groups), everywhere)
        if exchange == "groups" and cluster_ids is not None:
            cluster_ids = jax.lax.with_sharding_constraint(jnp.asarray(cluster_ids), everywhere)
        dtypes = jax.tree.map(lambda g: g.dtype, updates)
        if exchange_dtype is not None:
            updates = jax.tree.map(lambda g: g.astype(exchange_dtype), updates)
        slices = layout(params)
        if exchange == "mean":
            weights, sizes = _shares(num_groups, sizes)
            updates = slices.reduce(updates, weights)
        elif clusters_per_device is None or clusters_per_device >= num_groups // devices:
            extra |= {"cluster_ids": cluster_ids}
            updates = slices.exchange(updates)
        else:
            ids = check_cluster_ids(cluster_ids, num_groups)
            weights, ids, sizes = _merge(ids, sizes, devices, clusters_per_device)
            extra |= {"cluster_ids": ids}
            updates = slices.exchange(updates, weights)
        updates = jax.tree.map(lambda g, dtype: g.astype(dtype), updates, dtypes)

        cut = slices.cut(params)
        context = Context(slices=slices)
        updates, state = inner.update(updates, state, cut, group_sizes=sizes, context=context, **extra)
        return _gather(slices, updates, cut, params), slices.place(state)

    return optax.GradientTransformationExtraArgs(init, update)


def sharded_group_value_and_grad(
    loss_fn: Callable[..., Any],
    mesh: Mesh,
    *,
    data_axis: str = "data",
    has_aux: bool = False,
    mode: str = "vmap",
    matrix_dtype: DTypeLike | None = None,
) -> Callable[..., Any]:
    """`group_value_and_grad` with each device working on its own groups only.

    The groups of the batch are spread over `data_axis`; other axes of the mesh are left to the compiler, which
    follows the shardings of the parameters. Losses and gradients come back spread in the same way.

    Args:
      loss_fn, has_aux, mode, matrix_dtype: see `group_value_and_grad`.
      mesh: the device mesh, with axes of type Auto.
      data_axis: the axis over which the groups are spread.

    Returns:
      `f(params, batch, *shared, key=None)` as that of `group_value_and_grad`, with the same values. G must be a
      multiple of the axis's size: see `pad_groups`.
    """
    check_mesh(mesh, data_axis)
    devices = mesh.shape[data_axis]

    def with_key(params, group_and_key, *shared):
        group, key = group_and_key
        return loss_fn(params, group, *shared, **({} if key is None else {"key": key}))

    per_group = group_value_and_grad(with_key, has_aux=has_aux, mode=mode, matrix_dtype=matrix_dtype)

    def value_and_grad(params: Any, batch: Any, *shared: Any, key: jax.Array | None = None) -> Any:
        num_groups = _count_groups(batch, None, devices, data_axis)
        # One key a group, drawn before the groups part ways: the same keys on any number of devices.
        keys = None if key is None else jax.random.split(key, num_groups)
        groups, whole = P(data_axis), P()
        mapped = jax.shard_map(
            per_group,
            mesh=mesh,
            in_specs=(whole, groups, *(whole for _ in shared)),
            out_specs=groups,
            axis_names={data_axis},
            check_vma=False,
        )
        return mapped(params, (batch, keys), *shared)

    return value_and_grad


def pad_groups(
    batch: _Batch, cluster_ids: ArrayLike, group_sizes: ArrayLike | None, multiple: int
) -> tuple[_Batch, jax.Array, jax.Array]:
    """Adds groups of size 0, which every optimizer ignores, until G is a multiple of `multiple`.

    Args:
      batch: leaves [G, ...]; the added groups repeat the first, so that their losses stay finite.
      cluster_ids: int [G].
      group_sizes: [G], or None where all groups hold as many examples as the leaves are long.
      multiple: the number of devices on the data axis.

    Example:
      >>> batch, ids, sizes = pad_groups(jnp.ones((3, 5, 2)), jnp.array([0, 1, 1]), None, 4)
      >>> batch.shape, sizes.tolist()
      ((4, 5, 2), [5, 5, 5, 0])
    """
    num_groups = check_group_axis(batch, None)
    ids = check_cluster_ids(cluster_ids, num_groups)
    if group_sizes is None:
        group_sizes = jnp.full(num_groups, jnp.shape(jax.tree.leaves(batch)[0])[1], jnp.int32)
    sizes = check_group_sizes(group_sizes, num_groups)
    missing = -num_groups % multiple
    if not missing:
        return batch, ids, sizes

    def repeat_first(leaf):
        return jnp.concatenate([leaf, jnp.broadcast_to(leaf[:1], (missing, *leaf.shape[1:]))])

    return jax.tree.map(repeat_first, batch), repeat_first(ids), jnp.pad(sizes, (0, missing))


def sharded_eval_params(
    state: optax.OptState, params: optax.Params, mesh: Mesh, *, data_axis: str = "data", param_specs: Any = None
) -> optax.Params:
    """`igt_eval_params` for a state of `shard_by_parameter`: the whole parameters to evaluate, on every device."""
    slices = Slices(params, mesh, data_axis, param_specs, multiple=slice_multiple(state))
    found = igt_eval_params(state, None)
    return params if found is None else slices.gather(found)


def state_shardings(
    inner: optax.GradientTransformation,
    params: optax.Params,
    mesh: Mesh,
    *,
    data_axis: str = "data",
    param_specs: Any = None,
) -> optax.OptState:
    """Shape and sharding of each leaf of the state that `shard_by_parameter(inner, mesh, ...)` makes.

    Nothing is computed and no device memory is used: for restoring a checkpoint, or for arithmetic.

    Returns:
      A tree like the state's of `jax.ShapeDtypeStruct`, each with its sharding.
    """
    tx = shard_by_parameter(inner, mesh, data_axis=data_axis, param_specs=param_specs)
    state = jax.eval_shape(tx.init, params)
    slices = Slices(params, mesh, data_axis, param_specs, multiple=slice_multiple(state))
    shardings = slices.shardings(state)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), state, shardings)


def _count_groups(groups: Any, like: Any, devices: int, data_axis: str) -> int:
    num_groups = check_group_axis(groups, like)
    if num_groups % devices:
        raise ValueError(
            f"the number of groups must be a multiple of the {devices} devices of axis {data_axis!r}, got "
            f"{num_groups}; pad_groups adds groups of size 0"
        )
    return num_groups


def _gather(slices: Slices, updates: Any, cut: Any, params: Any) -> optax.Updates:
    """Whole updates from slices. Where they are wider than the parameters, the new parameters travel instead."""
    wider = jax.tree.map(lambda u, p: u.dtype != p.dtype, updates, cut)
    sent = jax.tree.map(lambda w, u, p: (p + u).astype(p.dtype) if w else u, wider, updates, cut)
    whole = slices.gather(sent)

    def as_update(wide, got, u, p):
        return got.astype(u.dtype) - p.astype(u.dtype) if wide else got

    return jax.tree.map(as_update, wider, whole, updates, params)


def _shares(num_groups: int, sizes: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """The weight of each group in the mean, [G], and the size of the one group that is left, [1]."""
    dtype = jnp.result_type(float)
    if sizes is None:
        return jnp.full(num_groups, 1 / num_groups, dtype), jnp.ones(1, dtype)
    sizes = jnp.maximum(sizes, 0).astype(dtype)
    total = jnp.sum(sizes)
    return sizes / jnp.where(total > 0, total, 1), total[None]


def _merge(ids: jax.Array, sizes: jax.Array | None, devices: int, slots: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Averages over the groups of one cluster on one device.

    Returns:
      The weights [D·S, G/D] of a device's groups in its S slots, and the cluster ids and sizes of the slots, [D·S].
    """
    ids = ids.reshape(devices, -1)
    sizes = jnp.ones(ids.shape, jnp.result_type(float)) if sizes is None else sizes.reshape(ids.shape)
    sizes = jnp.maximum(sizes, 0).astype(jnp.result_type(float))

    def one_device(ids, sizes):
        counts = sizes > 0
        same = (ids[:, None] == ids[None, :]) & counts[None, :]
        first = counts & ~jnp.any(jnp.tril(same, -1), axis=1)
        rank = jnp.cumsum(first) - 1  # the slot of each first group
        leads = first[None, :] & (rank[None, :] == jnp.arange(slots)[:, None])  # [S, G/D]
        member = jnp.any(leads[:, :, None] & same[None], axis=1)  # [S, G/D]
        slot_sizes = jnp.sum(jnp.where(member, sizes, 0), axis=1)
        slot_ids = jnp.sum(jnp.where(leads, ids, 0), axis=1)
        weights = jnp.where(member, sizes, 0) / jnp.where(slot_sizes > 0, slot_sizes, 1)[:, None]
        broken = jnp.sum(first) > slots
        return jnp.where(broken, jnp.nan, weights), slot_ids, slot_sizes

    weights, slot_ids, slot_sizes = jax.vmap(one_device)(ids, sizes)
    return weights.reshape(devices * slots, -1), slot_ids.reshape(-1), slot_sizes.reshape(-1)
