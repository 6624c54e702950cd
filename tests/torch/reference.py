"""(F1) to (F4), (D1), (A1), (A2) and (M1) to (M3) in slow, plain NumPy, one parameter at a time."""

import numpy as np

from tests.reference.muon_reference import matrix_step


class Parameter:
    """θ, and what each of the three optimizers remembers of it."""

    def __init__(self, theta, probs, kind, *, lr, beta, nu, damping, weight_decay):
        self.theta, self.kind, self.probs = theta, kind, np.asarray(probs)
        self.lr, self.beta, self.nu, self.damping, self.decay = lr, beta, nu, damping, weight_decay
        self.buffers = np.zeros((len(probs), *theta.shape))
        self.squares, self.steps = 0.0, 0

    def step(self, ids, sizes, grads):
        mean = np.tensordot(self.probs, self.buffers, 1)  # recomputed: the invariant, not a recursion
        change, moved = np.zeros_like(self.theta), {}
        for n in set(ids):
            mine = ids == n
            w = sizes[mine].sum() / sizes.sum()
            delta = np.average(np.stack(grads)[mine], axis=0, weights=sizes[mine]) - self.buffers[n]
            change = change + w * delta
            moved[n] = self.buffers[n] + min(1, (1 - self.beta) * w / self.probs[n]) * delta
        for n, value in moved.items():
            self.buffers[n] = value
        d = self.damped(mean + (1 - self.nu * self.beta) * change)
        self.theta = self.theta - self.lr * (self.update(d) + self.decay * self.theta)

    def damped(self, d):
        if self.damping is None or len(self.probs) == 1:
            return d
        mean = np.tensordot(self.probs, self.buffers, 1)
        u = (np.sqrt(self.probs) * (self.buffers - mean).reshape(len(self.probs), -1).T).T
        level = self.damping * np.trace(u @ u.T) / len(self.probs)
        if not np.isfinite(level) or level == 0:
            return d
        return d - (u.T @ np.linalg.solve(level * np.eye(len(u)) + u @ u.T, u @ d.ravel())).reshape(d.shape)

    def update(self, d):
        if self.kind == "discover":
            return d
        if self.kind == "muon" and d.ndim > 1:
            return matrix_step(d.reshape(len(d), -1).T).T.reshape(d.shape)
        self.steps += 1
        self.squares = 0.999 * self.squares + 0.001 * d**2
        adam = d / (np.sqrt(self.squares / (1 - 0.999**self.steps)) + 1e-8)
        return 0.2 * adam if self.kind == "muon" else adam
