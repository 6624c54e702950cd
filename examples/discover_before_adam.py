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

    def chain(first, rate, b1):
        return optax.chain(
            first,
            optax.clip_by_global_norm(1.0),  # of the one direction that comes out of `first`
            optax.scale_by_adam(b1=b1),
            optax.add_decayed_weights(0.01),
            optax.scale_by_learning_rate(optax.warmup_cosine_decay_schedule(0, rate, steps // 8, steps)),
        )

    clusters = discover.Clusters.uniform(len(texts))
    rows = {  # each with its best learning rate of a grid; the clusters remember already, so Adam need not (b1 = 0)
        "Adam": chain(discover.mean_over_groups(), 0.01, 0.5),
        "Discover, then Adam": chain(discover.scale_by_discover(clusters), 0.003, 0.0),
    }
    means = {}
    for name, tx in rows.items():
        means[name] = float(text_domains.train(tx, texts[:, :cut], texts[:, cut:]).mean())
        print(f"{name:20} held-out loss {means[name]:.3f} nats per character", flush=True)
    return means


if __name__ == "__main__":
    main()
