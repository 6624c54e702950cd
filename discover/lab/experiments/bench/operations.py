"""Floating-point operations of a step, counted in the program, not measured."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from discover.lab.data import Dataset
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.build import (
    build_network_for,
)
from discover.lab.models import Network


def operations_per_step(config: Config, dataset: Dataset, batch: int) -> float:
    """Floating-point operations of one gradient of the whole batch, as the uncompiled program states them."""
    network: Network = build_network_for(config.with_values({"model.convolution": "lax"}), dataset)
    shape = dataset.example_shape if config.data.crop_size is None else (config.data.crop_size,) * 2 + (3,)
    params = jax.eval_shape(network.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((batch, *shape), jnp.float32)

    def loss(params, x):
        return jnp.mean(network.apply(params, x))

    return float(count_operations(jax.make_jaxpr(jax.grad(loss))(params, x).jaxpr))


def count_operations(jaxpr: Any) -> int:
    """Multiplications and additions in the matrix products and convolutions of a program, those inside others too."""
    total = 0
    for equation in jaxpr.eqns:
        name, sizes = equation.primitive.name, [np.shape(v.aval) for v in equation.outvars[:1]]
        if name == "dot_general":
            (contracted, _), _ = equation.params["dimension_numbers"]
            total += 2 * math.prod(sizes[0]) * math.prod(equation.invars[0].aval.shape[d] for d in contracted)
        elif name == "conv_general_dilated":
            filters, dims = equation.invars[1].aval.shape, equation.params["dimension_numbers"]
            dilations = (*equation.params["lhs_dilation"], 1)  # zeros between the numbers are not multiplied
            reached = math.prod(filters[d] for d in dims.rhs_spec[1:])
            total += 2 * math.prod(sizes[0]) * reached // math.prod(dilations)
        is_program = lambda value: hasattr(value, "eqns") or hasattr(value, "jaxpr")  # noqa: E731
        for inner in filter(is_program, jax.tree.leaves(equation.params, is_leaf=is_program)):
            total += count_operations(getattr(inner, "jaxpr", inner))
    return total
