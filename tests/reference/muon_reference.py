"""Muon in slow, plain NumPy, written from the equations (M1) to (M3) of `discover/optimizers/muon.py`."""

import numpy as np

from tests.reference import family_reference


def newton_schulz(matrix, eps=1e-8):
    """(M1), one matrix, without transposing."""
    x = matrix / (np.sqrt(np.sum(matrix**2)) + eps)
    for _ in range(5):
        x = 3.4445 * x - 4.7750 * x @ x.T @ x + 2.0315 * x @ x.T @ x @ x.T @ x
    return x


def matrix_step(direction, eps=1e-8):
    """(M2), an array of two or more dimensions."""
    matrix = direction.reshape(-1, direction.shape[-1])
    rows, columns = matrix.shape
    size = 0.2 * max(rows, columns) ** 0.5 * max(1, columns / rows) ** 0.5
    return (size * newton_schulz(matrix, eps)).reshape(direction.shape)


class Steps:
    """From directions, flat vectors, to the steps of Muon: the first numbers are matrices, the rest takes (M3)."""

    def __init__(self, shapes, beta2=0.999, eps=1e-8):
        self.shapes, self.beta2, self.eps = shapes, beta2, eps
        self.squares, self.count = 0.0, 0

    def __call__(self, direction):
        parts, start = [], 0
        for shape in self.shapes:
            stop = start + int(np.prod(shape))
            parts.append(matrix_step(direction[start:stop].reshape(shape), self.eps).ravel())
            start = stop
        rest = direction[start:]
        self.count += 1
        self.squares = self.beta2 * self.squares + (1 - self.beta2) * rest**2
        parts.append(0.2 * rest / (np.sqrt(self.squares / (1 - self.beta2**self.count)) + self.eps))
        return np.concatenate(parts)


def muon(theta, gradient, batches, shapes, lr, beta, nu):
    """v = βv + (1−β)g, d = νv + (1−ν)g, θ −= μ·u(d)."""
    steps, v, path = Steps(shapes), np.zeros_like(theta), []
    for batch in batches:
        g = family_reference.batch_gradient(theta, gradient, batch)
        v = beta * v + (1 - beta) * g
        theta = theta - lr * steps(nu * v + (1 - nu) * g)
        path.append(theta)
    return np.array(path)


def discover_muon(theta, gradient, batches, probs, shapes, lr, beta, nu, damp=None):
    """(F1) to (F4), then u(d); `damp(direction, buffers)` comes between the two, with the buffers after the step."""
    steps, probs, path = Steps(shapes), np.asarray(probs), []
    buffers = np.zeros((len(probs), theta.size))
    for batch in batches:
        total = sum(size for _, size, _ in batch)
        share, sums = np.zeros(len(probs)), np.zeros_like(buffers)
        for n, size, group in batch:
            share[n] += size / total
            sums[n] += size / total * gradient(theta, group)
        seen = share > 0
        delta = np.zeros_like(buffers)
        delta[seen] = sums[seen] / share[seen, None] - buffers[seen]
        direction = probs @ buffers + (1 - nu * beta) * share @ delta
        buffers = buffers + np.minimum(1, (1 - beta) * share / probs)[:, None] * delta
        if damp is not None:
            direction = damp(direction, buffers)
        theta = theta - lr * steps(direction)
        path.append(theta)
    return np.array(path)


def damp(direction, buffers, probs, strength):
    """(D1) of `discover/damping.py` for one parameter: a flat direction, buffers [N, n]."""
    probs = np.asarray(probs)
    rows = np.sqrt(probs)[:, None] * (buffers - probs @ buffers)
    gram = rows @ rows.T
    ridge = strength * np.trace(gram) / len(probs)
    return direction - rows.T @ np.linalg.inv(ridge * np.eye(len(probs)) + gram) @ rows @ direction
