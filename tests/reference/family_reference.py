"""Slow, plain NumPy versions of the optimizers' equations, written from the equations and not from the library.

Every function runs a whole trajectory. `gradient(theta, group)` is the mean gradient of one group; `batches` is a list
of steps, each a list of (cluster, size, group).
"""

import numpy as np


def discover(theta, gradient, batches, probs, lr, beta, nu, rate="proportional"):
    """The rule of docs/family.md, (F1) to (F5), cluster by cluster."""
    buffers = {n: np.zeros_like(theta) for n in range(len(probs))}
    path = []
    for batch in batches:
        total = sum(size for _, size, _ in batch)
        mean = sum(p * buffers[n] for n, p in enumerate(probs))  # recomputed: the invariant, not a recursion
        change, moved = np.zeros_like(theta), {}
        for n in {cluster for cluster, _, _ in batch}:
            mine = [(size, gradient(theta, group)) for cluster, size, group in batch if cluster == n]
            count = sum(size for size, _ in mine)
            w = count / total
            delta = sum(size * g for size, g in mine) / count - buffers[n]
            rho = min(1.0, (1 - beta) * w / probs[n]) if rate == "proportional" else 1 - beta
            moved[n] = buffers[n] + rho * delta
            change = change + w * delta
        theta = theta - lr * (mean + (1 - nu * beta) * change)
        buffers.update(moved)
        path.append(theta)
    return np.array(path), buffers


def batch_gradient(theta, gradient, batch):
    total = sum(size for _, size, _ in batch)
    return sum(size * gradient(theta, group) for _, size, group in batch) / total


def qhm(theta, gradient, batches, lr, beta, nu):
    """Ma & Yarats: v = βv + (1−β)g, θ −= μ(νv + (1−ν)g)."""
    v, path = np.zeros_like(theta), []
    for batch in batches:
        g = batch_gradient(theta, gradient, batch)
        v = beta * v + (1 - beta) * g
        theta = theta - lr * (nu * v + (1 - nu) * g)
        path.append(theta)
    return np.array(path)


def heavy_ball(theta, gradient, batches, lr, beta):
    """w = βw + g, θ −= lr·w: momentum without the (1−β) weighting."""
    w, path = np.zeros_like(theta), []
    for batch in batches:
        w = beta * w + batch_gradient(theta, gradient, batch)
        theta = theta - lr * w
        path.append(theta)
    return np.array(path)


def adam(theta, gradient, batches, lr, beta1=0.9, beta2=0.999, eps=1e-8):
    m, v, path = np.zeros_like(theta), np.zeros_like(theta), []
    for t, batch in enumerate(batches, start=1):
        g = batch_gradient(theta, gradient, batch)
        m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        theta = theta - lr * (m / (1 - beta1**t)) / (np.sqrt(v / (1 - beta2**t)) + eps)
        path.append(theta)
    return np.array(path)


def tail_weight(s, tail_fraction):
    """Anytime tail averaging at step s = 1, 2, …, clipped at 0."""
    if s == 1:
        return 0.0
    if tail_fraction is None:
        return (s - 1) / s
    c = 1.0 / tail_fraction
    return max(0.0, c * (s - 1) / (1 + c * (s - 1)) * (1 - np.sqrt((1 - c) / (s * (s - 1))) / c))


def igt(theta, gradient, batches, lr, beta, tail_fraction):
    """The paper's IGT: w = βw − μv, θ += w, gradients at the shifted point."""
    previous, v, w, path = theta, np.zeros_like(theta), np.zeros_like(theta), []
    for s, batch in enumerate(batches, start=1):
        gamma = tail_weight(s, tail_fraction)
        shifted = theta + gamma / (1 - gamma) * (theta - previous)
        v = gamma * v + (1 - gamma) * batch_gradient(shifted, gradient, batch)
        w = beta * w - lr * v
        previous, theta = theta, theta + w
        path.append(theta)
    return np.array(path)


def discover_igt(theta, gradient, batches, probs, lr, beta, nu, tail_fraction):
    """The rule fed with transported gradients, one estimate per group."""
    buffers = {n: np.zeros_like(theta) for n in range(len(probs))}
    previous, v, path = theta, np.zeros_like(theta), []
    for s, batch in enumerate(batches, start=1):
        gamma = tail_weight(s, tail_fraction)
        shifted = theta + gamma / (1 - gamma) * (theta - previous)
        total = sum(size for _, size, _ in batch)
        estimates = [
            (cluster, size, gamma * v + (1 - gamma) * gradient(shifted, group)) for cluster, size, group in batch
        ]
        mean = sum(p * buffers[n] for n, p in enumerate(probs))
        change, moved = np.zeros_like(theta), {}
        for n in {cluster for cluster, _, _ in batch}:
            mine = [(size, e) for cluster, size, e in estimates if cluster == n]
            count = sum(size for size, _ in mine)
            delta = sum(size * e for size, e in mine) / count - buffers[n]
            moved[n] = buffers[n] + min(1.0, (1 - beta) * count / total / probs[n]) * delta
            change = change + count / total * delta
        v = sum(size * e for _, size, e in estimates) / total
        previous, theta = theta, theta - lr * (mean + (1 - nu * beta) * change)
        buffers.update(moved)
        path.append(theta)
    return np.array(path)


def saga(theta, gradient, batches, num_examples, lr):
    """SAGA on single examples (cluster = index of the example), table started at zero."""
    table = np.zeros((num_examples, theta.size))
    path = []
    for ((index, _, group),) in batches:
        g = gradient(theta, group)
        theta = theta - lr * (g - table[index] + table.mean(axis=0))
        table[index] = g
        path.append(theta)
    return np.array(path)


def paper_algorithm_1(theta, gradient, batches, probs, lr, alpha, alpha_n=None, shared_clusters="mean"):
    """Algorithm 1 as printed. Also returns ‖ḡ − Σ p_n g_n‖ after every step.

    shared_clusters: "mean" averages the examples of a cluster, as printed; "sum" adds up the buffer changes of the
    groups that share a cluster (a reading of the appendix on synchronising devices).
    """
    buffers = {n: np.zeros_like(theta) for n in range(len(probs))}
    mean, path, drift = np.zeros_like(theta), [], []
    for batch in batches:
        total = sum(size for _, size, _ in batch)
        grads = [(cluster, size, gradient(theta, group)) for cluster, size, group in batch]
        change = sum(size * (g - buffers[cluster]) for cluster, size, g in grads) / total
        moved = {}
        for n in {cluster for cluster, _, _ in batch}:
            mine = [(size, g) for cluster, size, g in grads if cluster == n]
            rate = alpha / probs[n] if alpha_n is None else alpha_n
            if shared_clusters == "sum":
                moved[n] = buffers[n] + rate * sum(g - buffers[n] for _, g in mine)
            else:
                count = sum(size for size, _ in mine)
                moved[n] = (1 - rate) * buffers[n] + rate / count * sum(size * g for size, g in mine)
        theta = theta - lr * (mean + change)
        mean = mean + alpha * change
        buffers.update(moved)
        path.append(theta)
        drift.append(np.linalg.norm(mean - sum(p * buffers[n] for n, p in enumerate(probs))))
    return np.array(path), np.array(drift)


def paper_discover_qhm(theta, gradient, batches, probs, lr, alpha, alpha_n, nu):
    """Discover-QHM as printed, with its second buffer update in one step."""
    buffers = {n: np.zeros_like(theta) for n in range(len(probs))}
    mean, path = np.zeros_like(theta), []
    for batch in batches:
        total = sum(size for _, size, _ in batch)
        grads = [(cluster, size, gradient(theta, group)) for cluster, size, group in batch]
        mean = mean - alpha / total * sum(size * (buffers[c] - g) for c, size, g in grads)
        once, twice = dict(buffers), dict(buffers)
        for n in {cluster for cluster, _, _ in batch}:
            mine = [(size, g) for cluster, size, g in grads if cluster == n]
            g_n = sum(size * g for size, g in mine) / sum(size for size, _ in mine)
            once[n] = (1 - alpha_n) * buffers[n] + alpha_n * g_n
            twice[n] = nu * once[n] + (1 - nu) * g_n
        theta = theta - lr / total * sum(size * (g - once[c] + mean) for c, size, g in grads)
        buffers = twice
        path.append(theta)
    return np.array(path)


def paper_discover_igt(theta, gradient, batches, probs, lr, alpha, alpha_n, tail_fraction):
    """Discover-IGT as printed: one v_t for the whole batch."""
    buffers = {n: np.zeros_like(theta) for n in range(len(probs))}
    mean, previous, v, path = np.zeros_like(theta), theta, np.zeros_like(theta), []
    for s, batch in enumerate(batches, start=1):
        total = sum(size for _, size, _ in batch)
        gamma = tail_weight(s, tail_fraction)
        shifted = theta + gamma / (1 - gamma) * (theta - previous)
        v = gamma * v + (1 - gamma) * batch_gradient(shifted, gradient, batch)
        change = sum(size * (v - buffers[c]) for c, size, _ in batch) / total
        previous, theta = theta, theta - lr * (mean + change)
        mean = mean + alpha * change
        for n in {cluster for cluster, _, _ in batch}:
            buffers[n] = (1 - alpha_n) * buffers[n] + alpha_n * v
        path.append(theta)
    return np.array(path)
