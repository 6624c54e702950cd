"""A real loss with real gradients: softmax regression on clustered data, in JAX and, independently, in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import discover

FEATURES, CLASSES = 5, 3


def loss(params, group):
    """Mean cross-entropy of a linear model over one group."""
    x, y = group
    logits = x @ params["w"] + params["b"][None]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def flat_gradient(theta, group):
    """The same gradient in NumPy, for parameters laid out as [w, b] in one vector."""
    x, y = group
    w, b = theta[: FEATURES * CLASSES].reshape(FEATURES, CLASSES), theta[FEATURES * CLASSES :]
    logits = x @ w + b
    probs = np.exp(logits - logits.max(axis=1, keepdims=True))
    probs /= probs.sum(axis=1, keepdims=True)
    error = (probs - np.eye(CLASSES)[y]) / len(y)
    return np.concatenate([(x.T @ error).ravel(), error.sum(axis=0)])


def flatten(params):
    return np.concatenate([np.asarray(params["w"]).ravel(), np.asarray(params["b"])])


def start(seed=0, dtype=None):
    rng = np.random.default_rng(seed)
    w, b = rng.normal(size=(FEATURES, CLASSES)), rng.normal(size=CLASSES)
    return {"w": jnp.asarray(w, dtype), "b": jnp.asarray(b, dtype)}


def draw_batches(num_steps, num_groups, probs, group_size=4, seed=0, sizes=None):
    """Steps of (cluster, size, (x, y)); the clusters differ in where their inputs lie and in their labels."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(len(probs), FEATURES)) * 2
    labels = rng.dirichlet(np.full(CLASSES, 0.3), size=len(probs))
    batches = []
    for _ in range(num_steps):
        batch = []
        for n in rng.choice(len(probs), size=num_groups, p=probs):
            x = centres[n] + rng.normal(size=(group_size, FEATURES))
            y = rng.choice(CLASSES, size=group_size, p=labels[n])
            size = group_size if sizes is None else int(rng.choice(sizes))
            batch.append((int(n), size, (x, y)))
        batches.append(batch)
    return batches


def stack(batches, dtype=None):
    """The batches as arrays: x [T, G, b, d], y [T, G, b], ids [T, G], sizes [T, G]."""
    x = jnp.asarray(np.array([[g[2][0] for g in batch] for batch in batches]), dtype)
    y = jnp.asarray(np.array([[g[2][1] for g in batch] for batch in batches]))
    ids = jnp.asarray(np.array([[g[0] for g in batch] for batch in batches]), jnp.int32)
    sizes = jnp.asarray(np.array([[g[1] for g in batch] for batch in batches]), jnp.int32)
    return x, y, ids, sizes


def train(tx, params, batches, true_params=False, loss_fn=loss):
    """The path of the flattened parameters [T, d], and the last optimizer state."""
    path, state = jax.jit(lambda: follow(tx, params, batches, true_params, loss_fn))()
    return np.asarray(path), state


def follow(tx, params, batches, true_params=False, loss_fn=loss):
    """The same within a program of somebody else's."""
    x, y, ids, sizes = stack(batches, params["w"].dtype)

    def step(carry, batch):
        params, state = carry
        x, y, ids, sizes = batch
        _, grads = discover.group_value_and_grad(loss_fn)(params, (x, y))
        updates, state = tx.update(grads, state, params, cluster_ids=ids, group_sizes=sizes)
        params = optax.apply_updates(params, updates)
        seen = discover.igt_eval_params(state, params) if true_params else params
        return (params, state), jnp.concatenate([seen["w"].ravel(), seen["b"]])

    (_, state), path = jax.lax.scan(step, (params, tx.init(params)), (x, y, ids, sizes))
    return path, state
