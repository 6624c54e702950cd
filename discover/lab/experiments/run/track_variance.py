"""The between-cluster variance along a run: a probe of the training loop; see `discover.lab.diagnostics.tracking`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from discover.lab.data import BatchPlan, Clustering, Dataset
from discover.lab.diagnostics.batches import composition_factor
from discover.lab.diagnostics.tracking import between_cluster
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.run.build import build_clustering
from discover.lab.experiments.run.prepare_examples import build_prepare
from discover.lab.models import Network
from discover.lab.training.programs import Members
from discover.lab.training.step import StepBatch, TrainState

EXAMPLES = 32
"""Fresh examples of each cluster per measurement, in two halves."""
COMPOSED = 1000
"""Batches whose composition is averaged over where clusters are not drawn independently."""
_OTHER_SEED = 1_000_003  # the probe's examples are drawn apart from the training batches


class VarianceProbe:
    """Measures the between-cluster variance of all members at some step, on fresh examples of every cluster.

    What it returns is a pure function of the state, the seeds and the step, so a resumed run writes the same lines.
    The clusters are the configuration's, also where batches are shuffled. What batches contain "as drawn" has a formula
    for random and shuffled batches; for balanced and given ones it is averaged over the compositions of their plan.
    """

    def __init__(self, config: Config, dataset: Dataset, network: Network, plans: dict[int, BatchPlan]):
        # Not the plans' own clusters: a plan of shuffled batches has a single one, with nothing between.
        clusterings = {seed: build_clustering(config, dataset, plan.noise) for seed, plan in plans.items()}
        first = next(iter(clusterings.values()))
        self.num_clusters, self.probs = first.num_clusters, first.probs
        if config.batches.composition == "given":  # the mean that such batches have, and the optimizer's too
            self.probs = next(iter(plans.values())).probs
        # Two plans, so that the halves are independent: one plan draws without replacement, which would make them
        # repel each other, and the product of their errors negative on average.
        self.plans = {
            (seed, half): BatchPlan(
                dataset.train.labels,
                clusterings[seed],
                groups=self.num_clusters,
                group_size=max(1, EXAMPLES // 2),
                composition="given",
                given=np.arange(self.num_clusters),
                seed=seed + (1 + half) * _OTHER_SEED,
                noise=plans[seed].noise,
            )
            for seed in plans
            for half in (0, 1)
        }
        prepare, _ = build_prepare(config, dataset)
        groups, batch_size = config.batches.groups, config.batches.groups * config.batches.group_size
        if config.batches.composition == "shuffled":
            groups = batch_size  # every example is drawn on its own: V_bet/|B|
        factor = self._factor(config, dataset, first, next(iter(plans.values())))

        def loss(params: Any, group: tuple[jax.Array, jax.Array]) -> jax.Array:
            x, targets = group
            return jnp.mean(optax.softmax_cross_entropy(network.apply(params, x), targets))

        # As many examples at once as a training step has, and no more: the probe must not need more memory.
        at_once = max(1, batch_size // max(1, EXAMPLES // 2))

        def measure(
            state: TrainState, seed: jax.Array, batch: StepBatch, step: jax.Array, images: jax.Array
        ) -> dict[str, jax.Array]:
            key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), 2), step)
            keys = jax.random.split(key, batch.cluster_ids.shape[0])
            group = jax.vmap(prepare)(keys, images[batch.examples], batch.labels, batch.cluster_ids)
            grads = jax.lax.map(lambda one: jax.grad(loss)(state.params, one), group, batch_size=at_once)
            halves = jax.tree.map(lambda g: g.reshape(2, self.num_clusters, *g.shape[1:]), grads)
            probs = jnp.asarray(self.probs, jnp.float32)
            found = between_cluster(
                state.opt_state, halves, probs, num_groups=groups, batch_size=batch_size, factor=factor
            )
            return {name if name == "signal" else f"between_{name}": value for name, value in found._asdict().items()}

        def over_members(state: Any, members: Members, batches: StepBatch, step: jax.Array, images: jax.Array) -> Any:
            def one(arguments: Any) -> Any:
                own, seed, place = arguments
                return measure(own, seed, jax.tree.map(lambda a: a[place], batches), step, images)

            return jax.lax.map(one, (state, members.seeds, members.drawn))

        self._measure = jax.jit(over_members)

    def _factor(self, config: Config, dataset: Dataset, clustering: Clustering, plan: BatchPlan) -> jax.Array | None:
        """How batches that do not draw their clusters independently are composed; None for the others."""
        if config.batches.composition not in ("balanced", "given"):
            return None
        # Not the plan itself, which on several hosts knows only its host's groups.
        drawn = BatchPlan(
            dataset.train.labels,
            clustering,
            groups=config.batches.groups,
            group_size=1,
            composition=config.batches.composition,
            given=config.batches.given_ids,
            seed=plan.seed,
            noise=plan.noise,
        ).batches(0, COMPOSED)
        return jnp.asarray(composition_factor(drawn.cluster_ids, self.probs), jnp.float32)

    def bind(self, seeds: Sequence[int], members: Members, images: jax.Array) -> Callable[[int, TrainState], Any]:
        """The probe of a part of the run: `probe(step, state) -> {name: values [M]}`."""

        def probe(step: int, state: TrainState) -> dict[str, np.ndarray]:
            # `batches`, not `batch`, which works out many of the steps ahead that the probe never asks for.
            drawn = [[self.plans[seed, half].batches(step, 1) for half in (0, 1)] for seed in seeds]
            joined = [[np.concatenate([part[0] for part in pair]) for pair in zip(*halves)] for halves in drawn]
            fields: Any = (jnp.asarray(np.stack(arrays)) for arrays in zip(*joined))
            found = self._measure(state, members, StepBatch(*fields), jnp.int32(step), images)
            return {name: np.asarray(value) for name, value in found.items()}

        return probe
