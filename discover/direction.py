"""`scale_by_discover`: one gradient per group in, one direction out. The rule with its memory, as optax wants it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from discover import quantized
from discover.checks import (
    all_masked,
    check_buffer_dtype,
    check_choice,
    check_cluster_ids,
    check_clusters,
    check_group_axis,
    check_group_sizes,
    check_parameters,
    check_unit_interval,
)
from discover.clusters import Clusters
from discover.context import NO_CONTEXT, GroupTransformation, Moved, Scalar
from discover.damping import damped
from discover.gpu.host_memory import PLACES, summed_rows, with_rows, zeros_on_host
from discover.gpu.update import update_parameters
from discover.nonfinite import skipping_nonfinite
from discover.rule import AFRESH, RATES, batch_weights

STEPS = 2**30  # a multiple of `AFRESH`


class DiscoverState(NamedTuple):
    """What the rule remembers. Invariant: `mean` = Σ_n p_n · `buffers`[n], to rounding."""

    mean: Any  # ḡ; leaves shaped like the parameters, float32 or wider
    buffers: Any  # g_n; leaves [N, ...], in `buffer_dtype`; for int8 a `Quantized` each; on the host `HostBuffers`
    examples_seen: Any  # float [2, N], examples seen of each cluster, and what that sum lost; None: p_n is given
    steps: Any  # int32 [], steps taken, modulo `STEPS`: which part of `mean` is summed afresh, and how to round


def scale_by_discover(
    clusters: Clusters,
    beta: Scalar = 0.95,
    nu: Scalar = 0.95,
    *,
    damping: Scalar | None = None,
    damping_clusters: int | None = None,
    rate: str = "proportional",
    buffer_dtype: DTypeLike | None = None,
    buffers: str = "device",
    estimate_probs: bool = False,
    skip_nonfinite: bool = False,
) -> GroupTransformation:
    r"""Turns one gradient per group into one direction, with one momentum per cluster.

    The rule is (F1) to (F5) of `rule.py`. Under the proportional rate and ν = 1 the direction is the updated ḡ: the
    mean of all the clusters' momenta, including those that the batch did not contain.

    Args:
      clusters: the clusters and their probabilities p_n.
      beta: β in [0, 1], how long a cluster remembers. The paper's α is 1 − β, its α_n is (1 − β)/p_n.
      nu: ν in [0, 1], how much of the step is momentum: 1 is the multi-momentum method, 0 the control
        variate of the paper's Algorithm 1, in between Discover-QHM.
      damping: κ ≥ 0 of (D1), `damping.py`: shorter steps along the directions in which the clusters disagree. 0.1 is a
        good start. None: no damping. It reads all N buffers at each step.
      damping_clusters: how many clusters take part in the damping at a step at most, in turn, to bound its cost where
        there are many. None: all.
      rate: "proportional" moves a buffer by its cluster's share of the batch relative to p_n, (F4);
        "per_visit" by 1 − β at each visit, (F5), for very rare clusters.
      buffer_dtype: dtype of the stored buffers: `jnp.bfloat16` halves the state, "int8" quarters it (`quantized.py`).
        Arithmetic and ḡ stay in float32 or wider. None: that of ḡ.
      buffers: "host" keeps them in the host's memory, from where those of the batch's clusters come and to where they
        go back at each step; "device" beside the parameters.
      estimate_probs: learn p_n from the group sizes seen so far instead of taking `clusters.probs`.
      skip_nonfinite: a group whose gradient holds NaN or infinity counts as one without examples, and the state counts
        how many there were. Otherwise it spoils the step, though no buffer.

    Returns:
      An `optax.GradientTransformationExtraArgs`. Its update takes gradients with leaves [G, ...],
      `cluster_ids` (int [G]) and, where groups differ or are padded, `group_sizes` ([G], 0 for padding). Its
      output is shaped like the parameters. A group whose id is outside 0..N−1 or whose size is 0 changes
      nothing; a batch without examples yields a zero direction and leaves the state as it was.

    Raises:
      ValueError: if β or ν is outside [0, 1], the rate is unknown, or gradients, ids and sizes do not fit.

    Example:
      >>> import jax.numpy as jnp
      >>> tx = scale_by_discover(Clusters.uniform(3), beta=0.9, nu=1.0)
      >>> state = tx.init(jnp.zeros(2))
      >>> grads = jnp.array([[1.0, 0.0], [0.0, 1.0]])       # two groups
      >>> direction, state = tx.update(grads, state, cluster_ids=jnp.array([0, 2]))
      >>> direction.shape
      (2,)

    Departs from the paper: Algorithm 1 as printed moves ḡ by α·Δ, which drifts away from Σ p_n g_n as soon as a
    batch has several groups. `paper_discover` keeps the printed lines.
    """
    check_clusters(clusters)
    check_unit_interval("beta", beta)
    check_unit_interval("nu", nu)
    check_choice("rate", rate, tuple(RATES))
    check_choice("buffers", buffers, PLACES)
    if damping is not None and buffers == "host":
        raise ValueError("damping reads the buffers of all clusters: with it buffers must be 'device', got 'host'")
    buffer_dtype = check_buffer_dtype(buffer_dtype)
    num_clusters = clusters.num_clusters

    def zero_buffers(p):
        if buffer_dtype == jnp.int8:
            if jnp.iscomplexobj(p):
                raise TypeError(f"buffer_dtype int8 is for real parameters, got dtype {jnp.result_type(p)}")
            return quantized.zeros(num_clusters, jnp.size(p))
        return jnp.zeros((num_clusters, *jnp.shape(p)), buffer_dtype or wide_dtype(p))

    def all_zero_buffers(like):
        return jax.tree.map(zero_buffers, like)

    def init(params):
        check_parameters(params)
        seen = jnp.zeros((2, num_clusters), jnp.result_type(float)) if estimate_probs else None
        if buffers == "host":
            zeros: Any = zeros_on_host(jax.eval_shape(all_zero_buffers, params))
        else:
            zeros = all_zero_buffers(params)
        return DiscoverState(zeros_like_wide(params), zeros, seen, jnp.zeros((), jnp.int32))

    def on_host(weights, updates, state, context):
        shapes = jax.eval_shape(all_zero_buffers, state.mean)

        def update(local, rows):
            return update_parameters(local, updates, state._replace(buffers=rows), context)

        answer, mean, host = with_rows(state.buffers, weights, shapes, update)
        due = weights.turn == AFRESH - 1
        mean = jax.lax.cond(due, lambda: summed_rows(host, weights.probs, shapes, mean), lambda: mean)
        return answer, mean, host

    def update(updates, state, params=None, *, cluster_ids=None, group_sizes=None, context=NO_CONTEXT, **_):
        del params
        if all_masked("gradients", updates):
            return updates, state
        num_groups = check_group_axis(updates, state.mean)
        ids = check_cluster_ids(cluster_ids, num_groups)
        sizes = None if group_sizes is None else check_group_sizes(group_sizes, num_groups)
        probs = jnp.asarray(clusters.probs, jnp.result_type(float))
        weights, seen = batch_weights(
            ids, sizes, probs, state.examples_seen, state.steps, correction=1 - nu * beta, rate=RATES[rate](beta)
        )
        update_all = on_host if buffers == "host" else update_parameters
        answer, mean, held = update_all(weights, updates, state, context)
        if context.move is not None:
            answer: Any = Moved(answer)
        steps = jnp.where(weights.active, (state.steps + 1) % STEPS, state.steps)
        return answer, DiscoverState(mean, held, seen, steps)

    rule = GroupTransformation(init, update)
    if damping is not None:
        rule = damped(rule, clusters.probs, damping, damping_clusters)
    elif damping_clusters is not None:
        raise ValueError(f"damping_clusters = {damping_clusters} goes with damping, which is None")
    return skipping_nonfinite(rule, skip_nonfinite)


def wide_dtype(array: Any) -> Any:
    """float32, or the array's own dtype where that is wider: in which sums over many steps are kept."""
    return jnp.promote_types(jnp.result_type(array), jnp.float32)


def zeros_like_wide(params: Any) -> Any:
    """Zeros shaped like the parameters, in `wide_dtype`."""
    return jax.tree.map(lambda p: jnp.zeros(jnp.shape(p), wide_dtype(p)), params)
