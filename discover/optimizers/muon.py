r"""Muon, and Discover in front of it: every matrix of the step is made orthogonal.

A direction d (momentum's, or Discover's of `rule.py`) becomes a step of the same size along all its singular vectors.
For a matrix of r rows and c columns, with X₀ = d/(‖d‖ + ε) and five steps of Newton–Schulz,

    X ← 3.4445·X − 4.7750·(XXᵀ)X + 2.0315·(XXᵀ)²X                                           (M1)
    u = 0.2·√max(r, c)·√max(1, c/r) · X₅                                                    (M2)

and for every other parameter, scales and biases, 0.2 times Adam's step from d:

    v ← β₂ v + (1 − β₂) d²,      u = 0.2 · d / (√(v/(1 − β₂ᵗ)) + ε)                         (M3)

then θ ← θ(1 − λμ) − μ·u. With 0.2·√max(r, c) a step has the size that Adam's has, so that one learning rate serves all
parameters (Liu et al. 2025); wide matrices, c > r, take steps that are √(c/r) longer, as in Jordan's Muon. (M1) is that
of `optax.contrib.scale_by_muon` (Jordan et al. 2024), without its momentum.

A convolution kernel [height, width, in, out] is the matrix [height·width·in, out]. With one cluster, Discover's
direction is quasi-hyperbolic momentum, and `discover_muon` is `muon`.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.typing import DTypeLike
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from discover.clusters import Clusters
from discover.context import NO_CONTEXT, GroupTransformation, Scalar
from discover.direction import scale_by_discover
from discover.gpu import device
from discover.groups import mean_over_groups
from discover.optimizers.buffered import buffered_only
from discover.optimizers.compose import Mask, optimizer_from
from discover.optimizers.plain import scale_by_adam, scale_by_qhm

LABELS = ("muon", "adam")
SIZE = 0.2  # of a step's numbers, in the root of their mean square: about what Adam's are
Labels = Any | Callable[[Any], Any] | None


def muon(
    learning_rate: optax.ScalarOrSchedule,
    beta: Scalar = 0.95,
    nu: Scalar = 0.95,
    *,
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    labels: Labels = None,
    matrix_dtype: DTypeLike | None = None,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask = None,
    l2: Scalar = 0.0,
) -> GroupTransformation:
    """Muon: (M1) to (M3) on the quasi-hyperbolic momentum of the mean over the groups.

    Args:
      learning_rate: μ, a number or a schedule of the step. Steps have about the size of Adam's.
      beta: β in [0, 1], how long the momentum remembers.
      nu: ν in [0, 1], how much of the direction is momentum, the rest is the fresh gradient; ν = β is Nesterov's.
      beta2: β₂ in [0, 1], how long (M3) remembers the squares.
      eps: ε in (M1) and (M3).
      labels: which parameters are made orthogonal, "muon", and which take Adam's step, "adam": a tree of labels like
        the parameters (or the upper part of one), or a function from parameters to one. None: "muon" for all of two
        or more dimensions.
      matrix_dtype: dtype of (M1). None: bfloat16, which it was made for; on a CPU, and for float64, the direction's.
      weight_decay, mask, l2: see `sgd`.

    Raises:
      ValueError: if β, ν or β₂ is outside [0, 1], a label is unknown, or a parameter labelled "muon" is no matrix.

    Example:
      >>> import jax.numpy as jnp
      >>> tx = muon(0.02)
      >>> params = {"w": jnp.zeros((3, 2)), "b": jnp.zeros(2)}
      >>> state = tx.init(params)
      >>> grads = {"w": jnp.ones((1, 3, 2)), "b": jnp.ones((1, 2))}     # one group
      >>> updates, state = tx.update(grads, state, params)
    """
    parts = (mean_over_groups(), scale_by_qhm(beta, nu), scale_by_orthogonal(beta2, eps, labels, matrix_dtype))
    return optimizer_from(*parts, learning_rate=learning_rate, weight_decay=weight_decay, mask=mask, l2=l2)


def discover_muon(
    learning_rate: optax.ScalarOrSchedule,
    clusters: Clusters,
    *,
    beta: Scalar = 0.95,
    nu: Scalar = 0.95,
    damping: Scalar | None = None,
    damping_clusters: int | None = None,
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    labels: Labels = None,
    matrix_dtype: DTypeLike | None = None,
    rate: str = "proportional",
    buffer_dtype: DTypeLike | None = None,
    buffers: str = "device",
    estimate_probs: bool = False,
    skip_nonfinite: bool = False,
    buffered: Mask = None,
    weight_decay: optax.ScalarOrSchedule = 0.0,
    mask: Mask = None,
    l2: Scalar = 0.0,
) -> GroupTransformation:
    """Discover in front of Muon: (M1) to (M3) on the direction of `scale_by_discover`.

    The gradients of cluster-pure batches differ most along a few directions, the means of the clusters. Discover
    removes most of the noise in them, and Muon lets none of them dominate the step.

    Args:
      learning_rate: μ, a number or a schedule of the step.
      clusters: the clusters and their probabilities.
      beta: β in [0, 1], how long a cluster remembers.
      nu: ν in [0, 1], how much of the direction is momentum.
      damping, damping_clusters: see `scale_by_discover`.
      beta2, eps, labels, matrix_dtype: see `muon`.
      rate, buffer_dtype, buffers, estimate_probs, skip_nonfinite: see `scale_by_discover`.
      buffered: which parameters have a buffer for each cluster, chosen as by `mask`; the others share one momentum.
        None: all. See docs/notes/digits.md for what the last layers alone bring.
      weight_decay, mask, l2: see `sgd`.

    Raises:
      ValueError: if β, ν or β₂ is outside [0, 1], a label is unknown, or a parameter labelled "muon" is no matrix.

    Example:
      >>> import jax.numpy as jnp
      >>> tx = discover_muon(0.02, Clusters.uniform(2))
      >>> params = jnp.zeros((3, 2))
      >>> state = tx.init(params)
      >>> updates, state = tx.update(jnp.ones((2, 3, 2)), state, params, cluster_ids=jnp.array([0, 1]))
      >>> updates.shape
      (3, 2)
    """
    rule = scale_by_discover(
        clusters,
        beta,
        nu,
        damping=damping,
        damping_clusters=damping_clusters,
        rate=rate,
        buffer_dtype=buffer_dtype,
        buffers=buffers,
        estimate_probs=estimate_probs,
    )
    return optimizer_from(
        buffered_only(rule, buffered, beta, nu),
        scale_by_orthogonal(beta2, eps, labels, matrix_dtype),
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        mask=mask,
        l2=l2,
        num_clusters=clusters.num_clusters,
        skip_nonfinite=skip_nonfinite,
    )


def scale_by_orthogonal(
    beta2: Scalar = 0.999,
    eps: Scalar = 1e-8,
    labels: Labels = None,
    matrix_dtype: DTypeLike | None = None,
) -> optax.GradientTransformationExtraArgs:
    """(M1) to (M3) for a direction shaped like the parameters; it has no momentum of its own.

    `optax.chain(scale_by_discover(...), scale_by_orthogonal(), ...)` is `discover_muon`. The arguments are those of
    `muon`. The state is that of `optax.scale_by_adam` for the parameters that are not made orthogonal.
    """
    adam = scale_by_adam(0.0, beta2, eps)

    def init(params):
        return adam.init(_those("adam", labels_of(params, labels), params))

    def update(updates, state, params=None, *, context=NO_CONTEXT, **_):
        del params
        slices = context.slices
        label = labels_of(updates, labels)
        vectors, state = adam.update(_those("adam", label, updates), state)
        # A slice of a matrix is no matrix: the devices put them together, and keep their slice of the result.
        if slices is not None and jax.tree.structure(updates) != slices.treedef:
            raise ValueError(
                "Muon for some of the parameters (optax.partition) cannot be cut over devices: "
                "use its labels to choose the parameters, or shard_by_parameter inside of the partition"
            )
        whole = updates if slices is None else slices.gather(updates)
        matrices = _those("muon", label, whole)
        flat, tree = jax.tree.flatten(matrices)
        matrices = tree.unflatten(orthogonalized(flat, eps, matrix_dtype))
        if slices is not None:
            filled = jax.tree.map(lambda one, u, m: m if one == "muon" else jnp.zeros_like(u), label, whole, matrices)
            matrices = slices.cut(filled)
        both = jax.tree.map(lambda one, m, v: m if one == "muon" else SIZE * v, label, matrices, vectors)
        return both, state

    return optax.GradientTransformationExtraArgs(init, update)


def orthogonalized(matrices: list[jax.Array], eps: Scalar, dtype: DTypeLike | None = None) -> list[jax.Array]:
    """(M1) and (M2) for arrays of two or more dimensions; those of one shape together, as a GPU likes it.

    Args:
      matrices: each is a matrix whose columns are its last axis.
      eps: ε.
      dtype: see `muon`.
    """
    if dtype is not None:
        return _orthogonalized(matrices, eps, lambda own: dtype)

    def precise() -> list[jax.Array]:
        return _orthogonalized(matrices, eps, lambda own: own)

    def fast() -> list[jax.Array]:
        return _orthogonalized(matrices, eps, lambda own: own if own == jnp.float64 else jnp.bfloat16)

    return device.by_device(cpu=precise, gpu=fast, other=fast)


def _orthogonalized(matrices: list[jax.Array], eps: Scalar, computed_in: Callable[[Any], DTypeLike]) -> list[jax.Array]:
    alike: dict[tuple[Any, ...], list[int]] = {}
    for number, one in enumerate(matrices):
        alike.setdefault((math.prod(one.shape[:-1]), one.shape[-1], one.dtype), []).append(number)
    result = list(matrices)  # also where there is nothing in an array
    for (rows, columns, own), members in alike.items():
        if not rows * columns:
            continue
        stack = jnp.stack([matrices[number].reshape(rows, columns) for number in members]).astype(computed_in(own))
        newton_schulz = scale_by_muon(
            beta=0.0, eps=eps, nesterov=False, weight_dimension_numbers=MuonDimensionNumbers(1, 2)
        )
        orthogonal: Any
        orthogonal, _ = newton_schulz.update(stack, newton_schulz.init(stack))  # its momentum of β = 0 is the direction
        size = SIZE * math.sqrt(max(rows, columns)) * math.sqrt(max(1.0, columns / rows))
        for number, one in zip(members, orthogonal.astype(own) * size):
            result[number] = one.reshape(matrices[number].shape)
    return result


def labels_of(params: Any, labels: Labels = None) -> Any:
    """A label for each parameter, as `muon` takes them, checked."""
    chosen = labels(params) if callable(labels) else labels
    if chosen is None:
        return jax.tree.map(lambda p: "muon" if jnp.ndim(p) > 1 else "adam", params)
    spread = jax.tree.map(lambda one, part: jax.tree.map(lambda _: one, part), chosen, params)
    jax.tree_util.tree_map_with_path(_check_label, spread, params)
    return spread


def _check_label(path: tuple[Any, ...], label: Any, param: Any) -> None:
    name = jax.tree_util.keystr(path) or "the parameter"
    if label not in LABELS:
        raise ValueError(f"labels must be 'muon' or 'adam', got {label!r} for {name}")
    if label == "muon" and jnp.ndim(param) < 2:
        raise ValueError(f"{name} of shape {jnp.shape(param)} is no matrix, which Muon needs; label it 'adam'")


def _those(kind: str, labels: Any, tree: Any) -> Any:
    """The tree with only the parameters of this label in it."""
    return jax.tree.map(lambda label, leaf: leaf if label == kind else optax.MaskedNode(), labels, tree)
