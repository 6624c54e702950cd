"""The same gradients for the JAX optimizers."""

import jax
import numpy as np

import discover

THEIRS = {"discover": discover.discover, "adam": discover.discover_adam, "muon": discover.discover_muon}


def to_jax(array):
    """A weight [out, in, …] of torch as the kernel […, in, out] of JAX."""
    return np.moveaxis(array, (0, 1), (-1, -2)) if array.ndim > 1 else array


def to_torch_layout(array):
    """And back."""
    array = np.asarray(array)
    return np.moveaxis(array, (-1, -2), (0, 1)) if array.ndim > 1 else array


def jax_path(tx, params, batches):
    """Parameters after each step."""
    with jax.enable_x64(True):
        tree = {name: to_jax(value) for name, value in params.items()}
        state, path = tx.init(tree), []
        most = max(len(ids) for ids, _, _ in batches)
        update = jax.jit(
            lambda grads, state, tree, ids, sizes: tx.update(grads, state, tree, cluster_ids=ids, group_sizes=sizes)
        )
        for ids, sizes, grads in batches:
            missing = most - len(ids)  # filled up with groups that do not count, so that one program serves all
            grads = {name: np.stack([to_jax(one[name]) for one in [*grads, *grads[:1] * missing]]) for name in params}
            updates, state = update(grads, state, tree, np.pad(ids, (0, missing)), np.pad(sizes, (0, missing)))
            tree = {name: tree[name] + updates[name] for name in tree}
            path.append({name: to_torch_layout(value) for name, value in tree.items()})
    return path
