"""The table of models, and networks made from it by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from discover.lab.models.layers import ConvFn
from discover.lab.models.network import Network, as_network
from discover.registry import Made, Table


@dataclass(frozen=True)
class Model(Made):
    """One model of the table.

    Attributes:
        name: as it is typed.
        factory: `module:function` of a flax module's class, or of a function that returns a :class:`Network`. Either
            takes the shape of an example and the number of classes, then options by name.
        casts_weights_first: whether its weights are cast to the dtype of the computation before anything else is done
            with them, so that their gradients have that precision anyway.
        reads_text: whether its examples are text, and nothing else; None: whatever they are.
    """

    given = ("rngs", "dtype", "conv_general_dilated", "next_byte")

    casts_weights_first: bool = False
    reads_text: bool | None = False

    @cached_property
    def arguments(self) -> Mapping[str, inspect.Parameter]:
        """The options, by name: all but the shape, the number of classes and what is given."""
        return {name: one for name, one in list(self.parameters.items())[2:] if name not in self.given}


MODELS: Table[Model] = Table(
    "model",
    (
        Model("logistic", "discover.lab.models.small:Logistic", True),
        Model("mlp", "discover.lab.models.small:MLP", True),
        Model("cnn", "discover.lab.models.small:CNN", True),
        Model("wide_resnet", "discover.lab.models.wide_resnet:WideResNet", True),
        Model("resnet", "discover.lab.models.resnet:ResNet"),  # standardizes its weights in float32
        Model("transformer", "discover.lab.models.transformer:Transformer", True, reads_text=True),
    ),
    from_path=lambda path: Model(path, path, reads_text=None),
)
"""Every model, in the order in which they are listed."""


def build_network(
    name: str,
    input_shape: tuple[int, ...],
    num_classes: int,
    *,
    dtype: DTypeLike = jnp.float32,
    conv_general_dilated: ConvFn | None = None,
    next_byte: bool = False,
    **options: Any,
) -> Network:
    """Makes a model by name.

    Args:
        name: of :data:`MODELS`, or `module:function` for one of your own.
        input_shape: of one example: (H, W, C), or (d,) for `logistic` and `mlp`.
        num_classes: outputs.
        dtype: of the computation; parameters are float32.
        conv_general_dilated: what every convolution calls in place of ``jax.lax.conv_general_dilated``.
        next_byte: whether a model of text is to give logits for each next byte.
        options: those of the model, such as `depth`, `width` and `dropout`; None means its own default.

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
    model = MODELS.find(name)
    options = {key: value for key, value in options.items() if value is not None}
    for key in options:
        if key not in model.arguments:
            has = ", ".join(model.arguments) or "no options"
            raise ValueError(f"model {name!r} has no {key}; it has {has}")
    if "dtype" in model.parameters:
        options["dtype"] = dtype
    elif jnp.dtype(dtype) != jnp.float32:
        raise ValueError(f"model {name!r} takes no dtype, and so computes in float32 only, got {jnp.dtype(dtype)}")
    if "conv_general_dilated" in model.parameters:
        options["conv_general_dilated"] = conv_general_dilated
    if "next_byte" in model.parameters:
        options["next_byte"] = next_byte
    elif next_byte:
        raise ValueError(f"model {name!r} does not guess the next byte of a text: set model.name=transformer")
    make = model.make
    if "rngs" in model.parameters:
        return as_network(lambda rngs: make(input_shape, num_classes, **options, rngs=rngs))
    network = make(input_shape, num_classes, **options)
    if not isinstance(network, Network):
        raise ValueError(f"model {name!r} must return a discover.lab.models.Network, got {type(network).__name__}")
    return network
