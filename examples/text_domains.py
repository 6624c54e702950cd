"""A small transformer learns six kinds of text, one kind per batch: Adam, momentum and Discover on the same batches.

Every text ships with Python or is generated here. Run it with `python examples/text_domains.py` (under a minute on a
CPU). The last row is the control: Adam on batches that mix all six kinds, if you can have those.
"""

import argparse
import ast
import calendar
import csv
import html.entities
import inspect
import json
import typing
import unicodedata
from pydoc_data import topics

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import discover

SOURCES = (argparse, ast, csv, json, typing)  # modules whose code is one of the texts
STEPS, BATCH, LENGTH, WIDTH, LAYERS = 400, 16, 32, 32, 2


def load_texts(size: int = 60_000) -> dict[str, np.ndarray]:
    """Six kinds of text as ASCII codes, each of `size` characters (shorter ones repeat)."""
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 1000, (6000, 2)).tolist()
    texts = {
        "manual": "\n".join(topics.topics[name] for name in sorted(topics.topics)),
        "source code": "".join(inspect.getsource(module) for module in SOURCES),
        "arithmetic": "".join(f"{a}+{b}={a + b}\n" for a, b in numbers),
        "calendar": "".join(calendar.calendar(year) for year in range(1980, 2020)),
        "unicode names": "\n".join(unicodedata.name(chr(code), "") for code in range(0x20, 0x2000)),
        "entities": "".join(f"&{name}; {ord(char[0]):#06x}\n" for name, char in html.entities.html5.items()),
    }
    codes = {name: np.frombuffer(text.encode("ascii", "replace"), np.uint8) for name, text in texts.items()}
    return {name: np.resize(code, size).astype(np.int32) for name, code in codes.items()}


class Block(nnx.Module):
    """Causal attention, then a multilayer perceptron, each on the normalised sum so far."""

    def __init__(self, rngs: nnx.Rngs):
        self.attention = nnx.MultiHeadAttention(4, WIDTH, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs), nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])

    def __call__(self, x: jax.Array) -> jax.Array:
        x = x + self.attention(self.norms[0](x), mask=nnx.make_causal_mask(x[..., 0]))
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class Transformer(nnx.Module):
    """Logits of the next character at every position."""

    def __init__(self, rngs: nnx.Rngs):
        self.characters, self.places = nnx.Embed(128, WIDTH, rngs=rngs), nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm, self.out = nnx.LayerNorm(WIDTH, rngs=rngs), nnx.Linear(WIDTH, 128, rngs=rngs)

    def __call__(self, text: jax.Array) -> jax.Array:
        x = self.characters(text) + self.places(jnp.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        return self.out(self.norm(x))


def draw_batches(domains: np.ndarray, seed: int, *, mixed: bool) -> tuple[np.ndarray, np.ndarray]:
    """STEPS batches of one group: texts [STEPS, 1, BATCH, LENGTH + 1], and the domain of each group [STEPS, 1]."""
    rng = np.random.default_rng(seed)
    kinds = rng.integers(len(domains), size=(STEPS, BATCH if mixed else 1))
    starts = rng.integers(domains.shape[1] - LENGTH, size=(STEPS, BATCH))
    text = domains[np.broadcast_to(kinds, starts.shape)[..., None], starts[..., None] + np.arange(LENGTH + 1)]
    return text[:, None], np.zeros((STEPS, 1), np.int32) if mixed else kinds.astype(np.int32)


def train(tx: optax.GradientTransformationExtraArgs, train_text: np.ndarray, test_text: np.ndarray, seed: int = 0,
          *, mixed: bool = False) -> jax.Array:  # fmt: skip
    """Trains with `tx`; the loss on held-out text of each domain, in nats per character."""
    graphdef, params = nnx.split(Transformer(nnx.Rngs(seed)), nnx.Param)

    def loss_fn(params, text):
        logits = nnx.merge(graphdef, params)(text[:, :-1])
        return optax.softmax_cross_entropy_with_integer_labels(logits, text[:, 1:]).mean()

    def step(carry, batch):
        params, state = carry
        text, domain = batch
        _, grads = discover.group_value_and_grad(loss_fn)(params, text)
        updates, state = tx.update(grads, state, params, cluster_ids=domain)
        return (optax.apply_updates(params, updates), state), None

    @jax.jit
    def run(params, batches):
        (params, _), _ = jax.lax.scan(step, (params, tx.init(params)), batches)
        return jax.vmap(loss_fn, (None, 0))(params, held_out)

    held_out = test_text[:, : 64 * (LENGTH + 1)].reshape(len(test_text), 64, LENGTH + 1)
    return run(params, draw_batches(train_text, seed, mixed=mixed))


def main() -> dict[str, float]:
    """Prints a table; returns the mean held-out loss of each row."""
    texts = load_texts()
    text = np.stack(list(texts.values()))
    cut = text.shape[1] * 9 // 10
    train_text, test_text = text[:, :cut], text[:, cut:]
    clusters = discover.Clusters.uniform(len(texts))
    rates = {
        "momentum": 1.0,
        "Adam": 0.01,
        "Discover, then Adam": 0.003,
        "Adam, mixed": 0.03,
    }  # each one's best of a grid
    rate = {name: optax.warmup_cosine_decay_schedule(0, peak, STEPS // 8, STEPS) for name, peak in rates.items()}
    rows = {
        "momentum": (discover.momentum(rate["momentum"]), False),
        "Discover": (discover.discover(rate["momentum"], clusters), False),
        "Adam": (discover.adam(rate["Adam"], beta1=0.5), False),
        "Discover, then Adam": (discover.discover_adam(rate["Discover, then Adam"], clusters), False),
        "Adam, mixed batches": (discover.adam(rate["Adam, mixed"], beta1=0.5), True),
    }
    print(f"{'':20}", *(f"{name:>14}" for name in [*texts, "mean"]))
    means = {}
    for name, (tx, mixed) in rows.items():
        losses = train(tx, train_text, test_text, mixed=mixed)
        means[name] = float(losses.mean())
        print(f"{name:20}", *(f"{loss:14.3f}" for loss in [*losses, means[name]]), flush=True)
    return means


if __name__ == "__main__":
    main()
