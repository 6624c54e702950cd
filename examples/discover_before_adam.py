"""Discover in front of Adam, by hand: what `discover_adam` is made of, with clipping and decay as in any optax chain.

The model and the texts are those of `text_domains.py`. `python examples/discover_before_adam.py`, under a minute on a
CPU. What to expect of it is measured in `docs/adam.md`: on these texts, about as much as of Adam alone.
"""

import numpy as np
import optax
import text_domains

import discover


def main() -> dict[str, float]:
    """Prints a table; returns the mean held-out loss of each row."""
    texts = np.stack(list(text_domains.load_texts().values()))
    cut = texts.shape[1] * 9 // 10
    steps = text_domains.STEPS
    after = (
        optax.clip_by_global_norm(1.0),  # of one direction, not of one gradient per group
        optax.scale_by_adam(b1=0.0),  # the clusters remember already
        optax.add_decayed_weights(0.01),
        optax.scale_by_learning_rate(optax.warmup_cosine_decay_schedule(0, 0.003, steps // 8, steps)),
    )
    plain = (after[0], optax.scale_by_adam(b1=0.9), *after[2:])
    rows = {
        "Adam": optax.chain(discover.mean_over_groups(), *plain),
        "Discover, then Adam": optax.chain(discover.scale_by_discover(discover.Clusters.uniform(len(texts))), *after),
    }
    means = {}
    for name, tx in rows.items():
        means[name] = float(text_domains.train(tx, texts[:, :cut], texts[:, cut:]).mean())
        print(f"{name:20} held-out loss {means[name]:.3f} nats per character", flush=True)
    return means


if __name__ == "__main__":
    main()
