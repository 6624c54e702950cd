"""Is the advice worth anything? Predicted gain against measured gain, over many settings of one data set.

For every way of drawing batches (number of groups, clustering, label noise) the advisor predicts how many times fewer
steps Discover needs than Momentum; then both train on those batches, each at its best learning rate, and the steps to
a target accuracy are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from discover.data import Clustering, Dataset
from discover.diagnostics.advisor import expected_gain, noise_ratio, recommend
from discover.diagnostics.batches import batch_noise
from discover.experiments.build import build_data, build_plan
from discover.experiments.config import Config
from discover.experiments.diagnose import DiagnosisOptions, _estimate, _judgeable, _Measurement, _shares
from discover.experiments.run import Member, run

__all__ = ["Plan", "rank_correlation", "validate"]


@dataclass(frozen=True)
class Plan:
    """What is tried.

    Attributes:
      groups: numbers of groups; the batch size stays the same.
      clusterings: names for `clusters.by`.
      label_noise: probabilities.
      batch_size: examples per batch.
      steps: of every run.
      targets: accuracy to reach, by label noise.
      momentum_rates: learning rates tried for Momentum.
      discover_rates: learning rates tried for Discover.
      seeds: of the training runs.
      betas: further β tried for Discover beside the advised one, with ν = 0.9/β.
    """

    groups: tuple[int, ...] = (1, 2, 4, 8)
    clusterings: tuple[str, ...] = ("classes", "kmeans", "random")
    label_noise: tuple[float, ...] = (0.0, 0.4)
    batch_size: int = 32
    steps: int = 600
    targets: tuple[float, ...] = (0.85, 0.7)
    momentum_rates: tuple[float, ...] = (0.01, 0.03, 0.1, 0.3, 1.0)
    discover_rates: tuple[float, ...] = (0.03, 0.1, 0.3, 1.0)
    seeds: tuple[int, ...] = (0, 1, 2)
    betas: tuple[float, ...] = (0.9, 0.95, 0.98, 0.99)


def validate(
    config: Config,
    plan: Plan | None = None,
    *,
    dataset: Dataset | None = None,
    options: DiagnosisOptions | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Predicts and measures the gain of Discover over Momentum in every setting of `plan`.

    Args:
      config: data and model; batches, clusters, noise and optimizer are set from the plan.
      plan: what is tried.
      dataset: the data set, if it is loaded already.
      options: of the diagnosis.
      say: takes one line of progress.

    Returns:
      `rows` (one per setting) and `rank_correlation`, JSON-able.
    """
    plan = plan or Plan()
    dataset = build_data(config) if dataset is None else dataset
    options = options or DiagnosisOptions()
    rows = []
    for noise, target in zip(plan.label_noise, plan.targets):
        base = config.with_values(
            {
                "data.label_noise": noise,
                "training.steps": plan.steps,
                "training.schedule": "constant",
                "training.eval_every": 10,
                "training.steps_per_dispatch": 10,
                "training.on_nonfinite": "drop",
                "training.log_every": 50,
                "batches.groups": 1,
                "batches.group_size": plan.batch_size,
                "batches.composition": "random",
            }
        )
        work = _Measurement(base, dataset, options)
        grams = {"start": work.gram(work.start), "warm-up": work.gram(work.warm_up())}
        for by in plan.clusterings:
            setting = base.with_values({"clusters.by": by})
            for groups in plan.groups:
                size = {"batches.groups": groups, "batches.group_size": plan.batch_size // groups}
                own = setting.with_values(size)
                row = {"clustering": by, "groups": groups, "group_size": plan.batch_size // groups}
                row |= {"label_noise": noise, "target": target, **_predict(own, dataset, work, grams)}
                row |= _measure(own, dataset, plan, target, row["num_clusters"])
                rows.append(row)
                say(
                    f"{by}, {groups} groups, noise {noise:g}: predicted {row['predicted']:.2f}, measured "
                    f"{row['measured']:.2f} (Momentum {row['momentum_steps']:g}, Discover {row['discover_steps']:g})"
                )
    return {"rows": rows, **rank_correlation(rows), "steps": plan.steps, "seeds": len(plan.seeds)}


def _predict(config: Config, dataset: Dataset, work: _Measurement, grams: dict[str, Any]) -> dict[str, Any]:
    clustering: Clustering = build_plan(config, dataset, seed=work.options.seed).clustering
    ids = work.labels if clustering.noise is not None else clustering.assignments
    if ids is None:
        raise ValueError(f"clusters of {clustering.kind} are no partition: they cannot be validated here")
    sample, probs = _judgeable(*_shares(ids, work.chosen))
    setting = recommend(clustering.num_clusters, config.batches.groups)
    result: dict[str, Any] = {"num_clusters": clustering.num_clusters, "beta": setting.beta, "nu": setting.nu}
    for stage, gram in grams.items():
        estimate = _estimate(gram, sample, probs, work)
        noise = batch_noise(
            estimate.in_cluster.value,
            estimate.between_cluster.value,
            num_groups=config.batches.groups,
            group_size=config.batches.group_size,
        )
        result[f"share_{stage}"] = noise.between_share
        result[f"noise_ratio_{stage}"] = noise_ratio(estimate, noise, setting.visit_rate, float(probs @ probs))
        result[f"noise_to_signal_{stage}"] = noise.total / max(estimate.mean_square.value, 1e-12)
    result["predicted"] = expected_gain(result["noise_ratio_warm-up"])
    return result


def _measure(config: Config, dataset: Dataset, plan: Plan, target: float, num_clusters: int) -> dict[str, Any]:
    """Steps to the target for both optimizers at their best learning rates."""
    advised = recommend(num_clusters, config.batches.groups)
    pairs = [(advised.beta, advised.nu), *((beta, min(1.0, 0.9 / beta)) for beta in plan.betas)]
    momentum = _best(
        config.with_values({"optimizer.name": "momentum", "optimizer.beta": 0.9}),
        dataset,
        [{"learning_rate": rate} for rate in plan.momentum_rates],
        plan,
        target,
    )
    settings = [{"learning_rate": r, "beta": b, "nu": n} for b, n in pairs for r in plan.discover_rates]
    ours = config.with_values({"optimizer.name": "discover", "optimizer.beta": 0.9, "optimizer.nu": 1.0})
    steps = _steps(ours, dataset, settings, plan, target)
    by_beta: dict[str, float] = {}
    for values, count in zip(settings, steps):
        name = f"{values['beta']:g}"
        by_beta[name] = min(by_beta.get(name, np.inf), count)
    discover = min(steps[: len(plan.discover_rates)])
    return {
        "momentum_steps": momentum,
        "discover_steps": discover,
        "discover_steps_by_beta": by_beta,
        "measured": momentum / discover,
        "censored": bool(max(momentum, discover) >= plan.steps),
    }


def _best(config: Config, dataset: Dataset, settings: Sequence[dict[str, float]], plan: Plan, target: float) -> float:
    return min(_steps(config, dataset, settings, plan, target))


def _steps(
    config: Config, dataset: Dataset, settings: Sequence[dict[str, float]], plan: Plan, target: float
) -> list[float]:
    """For each setting the mean over seeds of the first evaluated step at which the target is reached."""
    members = [Member(seed, values) for values in settings for seed in plan.seeds]
    result = run(config, None, members=members, dataset=dataset, checkpoints=False)
    reached = []
    for member in result.members:
        hits = [
            line["step"]
            for line in member.metrics
            if line["kind"] == "eval" and line["split"] == "validation" and line["accuracy"] >= target
        ]
        reached.append(min(hits, default=plan.steps))
    return np.asarray(reached, float).reshape(len(settings), len(plan.seeds)).mean(axis=1).tolist()


def rank_correlation(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Spearman's rank correlation of predicted and measured gains, with a bootstrap interval over settings."""
    predicted = np.array([row["predicted"] for row in rows])
    measured = np.array([row["measured"] for row in rows])
    rng = np.random.default_rng(0)
    again = []
    for _ in range(1000):
        pick = rng.integers(0, len(rows), len(rows))
        again.append(_spearman(predicted[pick], measured[pick]))
    low, high = np.nanquantile(again, [0.025, 0.975])
    return {
        "rank_correlation": _spearman(predicted, measured),
        "rank_correlation_low": float(low),
        "rank_correlation_high": float(high),
    }


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    ranks = [_ranks(values) for values in (a, b)]
    spread = [rank.std() for rank in ranks]
    if min(spread) == 0:
        return float("nan")
    return float(np.mean((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())) / (spread[0] * spread[1]))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values sharing their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts + 1) / 2)[inverse]
