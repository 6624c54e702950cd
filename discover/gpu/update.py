"""Which version of the rule runs where, and what each backend needs to run it well."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from discover.context import Context
from discover.gpu import device, update_kernel
from discover.gpu.parameters import Parameter, Result, Update, as_vector, map_parameters, small_ones_together
from discover.gpu.stacked import summed_afresh, update_stacked
from discover.rule import Weights

if TYPE_CHECKING:
    from discover.sharding.slices import Slices

VECTOR = {"offset": "vector", "move": "param"}
"""What of an `Offset` and of a `Move` is as long as the parameter."""


def update_parameters(weights: Weights, grads: Any, state: Any, context: Context) -> tuple[Any, Any, Any]:
    """Applies the rule to all parameters: trees of directions (or of moved parameters), means and buffers."""

    several = context.slices is not None and context.slices.mesh.size > 1

    def cpu():
        def update_one(one: Parameter) -> Result:
            return update_stacked(weights, one, on_cpu=True)

        def update(parameters: Sequence[Parameter]) -> list[Result]:
            # As a vector a slice would have to change devices.
            results = [update_one(one) if several else as_vector(update_one, one) for one in parameters]
            return summed_afresh(weights, results)

        return map_parameters(update, grads, state, context)

    def other():
        return map_parameters(_plain(weights), grads, state, context)

    def gpu():
        if not 0 < weights.share.size <= update_kernel.MAX_GROUPS:
            return other()
        if context.slices is not None and several:
            return map_parameters(_kernels_on_slices(weights, context.slices), grads, state, context)
        return map_parameters(_kernels(weights), grads, state, context)

    return device.by_device(cpu=cpu, gpu=gpu, other=other)


def _plain(weights: Weights) -> Update:
    def update(parameters: Sequence[Parameter]) -> list[Result]:
        return summed_afresh(weights, [update_stacked(weights, one, on_cpu=False) for one in parameters])

    return update


def _has_kernel(one: Parameter) -> bool:
    param = one.mean if one.move is None else one.move.param
    return one.mean.dtype == jnp.float32 and param.dtype == jnp.float32 and one.mean.size > 0


def _kernels(weights: Weights) -> Update:
    """Kernels for the parameters that can have one; small parameters are joined to one."""
    scalars = update_kernel.pack(weights)

    def prepared(one: Parameter) -> Parameter:
        # The gradients of vectors (biases, scales of norms) are sums over activations, on which XLA would impose the
        # memory layout that a kernel needs; a gather on the way keeps it to itself (docs/notes/kernels.md).
        if one.mean.ndim > 1:
            return one
        same_order = jnp.where(weights.active, jnp.arange(weights.share.size), 0)  # XLA cannot see that it is
        return one._replace(grads=one.grads.at[same_order].get(mode="promise_in_bounds"))

    def kernels(parameters: Sequence[Parameter]) -> list[Result]:
        return update_kernel.update_in_kernels(scalars, [prepared(one) for one in parameters])

    def update(parameters: Sequence[Parameter]) -> list[Result]:
        able = iter(small_ones_together(kernels)([one for one in parameters if _has_kernel(one)]))
        others = iter(_plain(weights)([one for one in parameters if not _has_kernel(one)]))
        return [next(able) if _has_kernel(one) else next(others) for one in parameters]

    return update


def _kernels_on_slices(weights: Weights, slices: Slices) -> Update:
    """One kernel for each parameter, on every device with its own slice of it."""
    scalars = update_kernel.pack(weights)

    def update_one(one: Parameter) -> Result:
        leaf = slices.find(one.path)
        # Not found: an optimizer around this one has made another tree of the parameters.
        if leaf is None or not _has_kernel(one):
            return _plain(weights)([one])[0]
        asked = {"move": one.move, "offset": one.offset}  # sorted by name, as jax sorts the keys of a tree
        numbers = {name: value._replace(**{VECTOR[name]: None}) for name, value in asked.items() if value is not None}
        vectors = [getattr(asked[name], VECTOR[name]) for name in numbers]

        def on_one_device(scalars: Any, numbers: Any, grads: Any, mean: Any, buffers: Any, *vectors: Any) -> Result:
            own = {name: numbers[name]._replace(**{VECTOR[name]: v}) for name, v in zip(numbers, vectors)}
            parameter = Parameter(None, grads, mean, buffers, own.get("offset"), own.get("move"))
            return update_kernel.update_in_kernels(scalars.starting_at(slices.start(leaf)), [parameter])[0]

        sliced = (one.grads, one.mean, one.buffers, *vectors)
        return slices.on_each_device(leaf, on_one_device, (scalars, numbers), sliced, (0, 0, 1))

    return lambda parameters: [update_one(one) for one in parameters]
