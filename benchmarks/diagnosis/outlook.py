"""What the advisor expects of Discover in a setting, before anything is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from discover.lab.data import BatchPlan, Clustering, Dataset
from discover.lab.diagnostics.advisor import BETA, expected_gain, recommend
from discover.lab.diagnostics.batches import BatchNoise, batch_noise, composed_batch_noise
from discover.lab.diagnostics.variance import Estimate
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.diagnose.gradient_sample import DiagnosisOptions, GradientSample, judgeable, shares

COMPOSED = 400
"""Batches that are composed where clusters are not drawn independently."""


class Outlook:
    """One network on one data set with its label noise: gradients of a sample at the start and after a warm-up.

    Any way to cluster and to draw batches is judged from the same gradients.
    """

    def __init__(self, config: Config, dataset: Dataset, options: DiagnosisOptions | None = None):
        self.work = GradientSample(config, dataset, options or DiagnosisOptions())
        self.params = {"start": self.work.start, "warm-up": self.work.warm_up()}
        self.grams = {stage: self.work.gram(params) for stage, params in self.params.items()}

    def predict(self, clustering: Clustering, config: Config) -> dict[str, Any]:
        """The expected gain for batches as ``config`` draws them, and what it is made of, by stage."""
        batches = config.batches
        setting = recommend(clustering.num_clusters, batches.groups)
        result: dict[str, Any] = {"num_clusters": clustering.num_clusters, "beta": setting.beta, "nu": setting.nu}
        for stage, gram in self.grams.items():
            if clustering.overlapping:  # augmentations: every cluster holds every example
                estimate, probs = self.work.augmented(self.params[stage]), np.asarray(clustering.probs)
                noise = _independent(estimate, config)
            else:
                ids = self.work.labels if clustering.noise is not None else clustering.assignments
                sample, probs = judgeable(*shares(np.asarray(ids), self.work.chosen))
                estimate = self.work.estimate(gram, sample, probs)
                noise = self._composed(gram, sample, config) or _independent(estimate, config)
            result[f"share_{stage}"] = noise.between_share
            result[f"gain_{stage}"] = expected_gain(estimate, noise, setting.visit_rate, float(probs @ probs))
            result[f"noise_to_signal_{stage}"] = noise.total / max(estimate.mean_square.value, 1e-12)
        result["predicted"] = result["gain_warm-up"]
        return result

    def _composed(self, gram: NDArray[np.float64], sample: NDArray, config: Config) -> BatchNoise | None:
        """What momentum leaves of the noise where clusters take turns; None where they are drawn independently."""
        batches = config.batches
        if batches.composition != "balanced":
            return None
        clustering, seed = Clustering.from_column(sample), self.work.options.seed
        plan = BatchPlan(
            np.zeros(len(sample), np.int32), clustering, groups=batches.groups, group_size=1, composition="balanced",
            seed=seed,
        )  # fmt: skip
        drawn = plan.batches(0, COMPOSED).cluster_ids
        sizes = self.work.whole_sizes(sample, clustering.num_clusters)
        return composed_batch_noise(
            gram,
            sample,
            drawn,
            batches.group_size,
            plan.probs,
            cluster_sizes=sizes,
            memory=BETA,
            bootstrap=0,
            seed=seed,
        ).noise


def _independent(estimate: Estimate, config: Config) -> BatchNoise:
    return batch_noise(
        estimate.in_cluster.value,
        estimate.between_cluster.value,
        num_groups=config.batches.groups,
        group_size=config.batches.group_size,
    )
