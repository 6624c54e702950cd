"""A model as two pure functions, so that a training step is a pure function of its parameters."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from flax import nnx

from discover.lab.models.layers import ConvFn
from discover.lab.models.resnet import ResNet
from discover.lab.models.small import CNN, MLP, Logistic
from discover.lab.models.wide_resnet import WideResNet

MODELS = ("logistic", "mlp", "cnn", "wide_resnet", "resnet")
"""The names that :func:`build_network` knows."""


class Apply(Protocol):
    """``apply(params, x, key=None) -> logits``; dropout is active exactly when there is a key."""

    def __call__(self, params: Any, x: jax.Array, key: jax.Array | None = None) -> jax.Array: ...


class Network(NamedTuple):
    """A model split once into its structure and its parameters (nested dictionaries of float32 arrays)."""

    init: Callable[[jax.Array], Any]  # key -> params
    apply: Apply
    num_parameters: int


def build_network(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    depth: int | None = None,
    width: int | None = None,
    dropout: float | None = None,
    dtype: Any = jnp.float32,
    conv_general_dilated: ConvFn | None = None,
) -> Network:
    """Makes a model by name. None means the model's own default.

    Args:
        name: `logistic`, `mlp`, `cnn`, `wide_resnet` or `resnet`.
        input_shape: of one example: (H, W, C), or (d,) for `logistic` and `mlp`.
        num_classes: outputs.
        depth: see the models.
        width: see the models.
        dropout: rate.
        dtype: of the computation; parameters are float32.
        conv_general_dilated: what every convolution calls in place of ``jax.lax.conv_general_dilated``.

    Returns:
        ``init`` and ``apply``, pure and traceable, and the number of parameters.

    Raises:
        ValueError: an unknown name, an option that the model does not have, or an input that it cannot take.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> network = build_network("mlp", (8, 8, 1), 10, width=32)
        >>> network.num_parameters
        2410
        >>> network.apply(network.init(jax.random.key(0)), jnp.ones((5, 8, 8, 1))).shape
        (5, 10)
    """
    if name not in MODELS:
        near = difflib.get_close_matches(name, MODELS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"unknown model {name!r}: {hint}choose from {', '.join(MODELS)}")
    options: dict[str, Any] = {"depth": depth, "width": width, "dropout_rate": dropout}
    options = {key: value for key, value in options.items() if value is not None}
    if name == "logistic" and options:
        raise ValueError(f"the logistic model has no {', '.join(options)}; leave that at none")
    options["dtype"] = dtype
    if name in ("cnn", "wide_resnet", "resnet"):
        if len(input_shape) != 3:
            raise ValueError(f"model {name!r} needs images of shape (H, W, C), got shape {input_shape}")
        options["conv_general_dilated"] = conv_general_dilated
        classes = {"cnn": CNN, "wide_resnet": WideResNet, "resnet": ResNet}
        first: Any = input_shape[-1]
    else:
        classes = {"logistic": Logistic, "mlp": MLP}
        first = input_shape
    model_class = classes[name]

    def make(key: jax.Array) -> nnx.Module:
        return model_class(first, num_classes, **options, rngs=nnx.Rngs(key))

    # eval_shape builds the structure without computing an initial parameter.
    graphdef, abstract = nnx.split(nnx.eval_shape(lambda: make(jax.random.key(0))), nnx.Param)

    def init(key: jax.Array) -> Any:
        return nnx.to_pure_dict(nnx.split(make(key), nnx.Param)[1])

    def apply(params: Any, x: jax.Array, key: jax.Array | None = None) -> jax.Array:
        return nnx.merge(graphdef, params)(x, key=key)

    count = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.to_pure_dict(abstract)))
    return Network(init, apply, count)
