"""Is the advice worth anything? Predicted gain against measured gain, over many settings of one data set.

For every way of drawing batches (number of groups, clustering, label noise) the advisor predicts how many times fewer
steps Discover needs than the same with one momentum for all clusters, which is QHM of its β and ν; then both, and
Momentum, train on those batches and the steps to a target accuracy are counted. Each takes its learning rate from a
grid, chosen on some seeds; the steps are counted on others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import numpy as np
from scipy.stats import rankdata

from benchmarks.diagnosis.outlook import Outlook
from benchmarks.diagnosis.steps_to_target import Race, Steps
from discover.lab.data import Clustering, Dataset
from discover.lab.diagnostics.advisor import recommend
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.diagnose.gradient_sample import DiagnosisOptions
from discover.lab.experiments.run.build import build_clustering, build_data

_COLUMN = "clusters of the validation"


@dataclass(frozen=True)
class Validation:
    """What is tried.

    Attributes:
      groups: numbers of groups; the batch size stays the same.
      clusterings: names for `clusters.by`.
      label_noise: probabilities.
      batch_size: examples per batch.
      steps: after which a training is given up.
      eval_every: steps between evaluations, how finely steps are counted.
      targets: accuracy to reach, by label noise.
      learning_rates: tried for each optimizer.
      tuning_seeds: on which learning rates are chosen.
      seeds: on which steps are counted.
    """

    groups: tuple[int, ...] = (1, 2, 4, 8)
    clusterings: tuple[str, ...] = ("classes", "kmeans", "random")
    label_noise: tuple[float, ...] = (0.0, 0.4)
    batch_size: int = 32
    steps: int = 1000
    eval_every: int = 10
    targets: tuple[float, ...] = (0.85, 0.7)
    learning_rates: tuple[float, ...] = (0.2, 0.5, 1.0, 0.1, 2.0, 0.05)
    tuning_seeds: tuple[int, ...] = (0, 1, 2)
    seeds: tuple[int, ...] = (3, 4, 5, 6, 7)

    @property
    def settings(self) -> list[tuple[str, int, float, float]]:
        """Clustering, groups, label noise and target of every setting, in order."""
        return [
            (by, groups, noise, target)
            for noise, target in zip(self.label_noise, self.targets, strict=True)
            for by in self.clusterings
            for groups in self.groups
        ]


def validate(
    config: Config,
    tried: Validation | None = None,
    *,
    dataset: Dataset | None = None,
    options: DiagnosisOptions | None = None,
    rows: Sequence[dict[str, Any]] = (),
    say: Callable[[str], None] = lambda line: None,
    save: Callable[[dict[str, Any]], None] = lambda record: None,
) -> dict[str, Any]:
    """Predicts and measures the gain of Discover in every setting of `tried`.

    Args:
      config: data and model; batches, clusters, noise and optimizer are set from what is tried.
      tried: what is tried.
      dataset: the data set, if it is loaded already.
      options: of the diagnosis.
      rows: of an earlier record of the same settings: they are not measured again.
      say: takes one line of progress.
      save: takes the record after every setting.
    """
    tried = tried or Validation()
    dataset = build_data(config) if dataset is None else dataset
    options = options or DiagnosisOptions()
    race = Race(dataset, tried.steps, tried.tuning_seeds, tried.seeds)
    known = {(row["clustering"], row["groups"], row["label_noise"]): row for row in rows}
    record = _record(config, dataset, tried)
    looks: dict[float, _Look] = {}
    for by, groups, noise, target in tried.settings:
        row = known.get((by, groups, noise))
        if row is None:
            if noise not in looks:
                looks[noise] = _Look(_base(config, tried, noise), dataset, options)
            row = looks[noise].row(by, groups, tried, race, target)
        record["rows"].append(row)
        record |= rank_correlation(record["rows"])
        say(
            f"{by}, {groups} groups, noise {noise:g}: expected {row['predicted']:.2f}, measured "
            f"{row['measured']:.2f} (Momentum {row['momentum_steps']:g}, one momentum for all {row['plain_steps']:g}, "
            f"Discover {row['discover_steps']:g} steps"
            f"{_given_up(row, len(tried.seeds))})"
        )
        save(record)
    for noise, target in zip(tried.label_noise, tried.targets):
        shuffled = _base(config, tried, noise).with_values({"batches.composition": "shuffled"})
        record["shuffled"].append({"label_noise": noise, **_flat("momentum", _momentum(shuffled, tried, race, target))})
    save(record)
    return record


def _record(config: Config, dataset: Dataset, tried: Validation) -> dict[str, Any]:
    return {
        "data": dataset.name,
        "examples": len(dataset.train),
        "example_shape": list(dataset.example_shape),
        "model": asdict(config.model),
        "plan": asdict(tried),
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "rows": [],
        "shuffled": [],
    }


def _base(config: Config, tried: Validation, noise: float) -> Config:
    return config.with_values(
        {
            "data.label_noise": noise,
            "training.eval_every": tried.eval_every,
            "training.steps_per_dispatch": tried.eval_every,
            "training.log_every": tried.eval_every,
            "batches.groups": 1,
            "batches.group_size": tried.batch_size,
            "batches.composition": "random",
        }
    )


class _Look:
    """What the advisor sees at one level of label noise, and the settings judged from it."""

    def __init__(self, base: Config, dataset: Dataset, options: DiagnosisOptions):
        self.base, self.dataset = base, dataset
        self.outlook = Outlook(base, dataset, options)
        self.clusterings: dict[str, Clustering] = {}

    def row(self, by: str, groups: int, tried: Validation, race: Race, target: float) -> dict[str, Any]:
        """One setting: what was expected, and what came."""
        setting = self.base.with_values(
            {"clusters.by": by, "batches.groups": groups, "batches.group_size": tried.batch_size // groups}
        )
        if by not in self.clusterings:
            self.clusterings[by] = build_clustering(setting, self.dataset, self.outlook.work.noise)
        clustering = self.clusterings[by]
        if setting.clusters.entry.costly:  # found once, not again for every training
            columns = {**race.dataset.train.columns, _COLUMN: clustering.assignments}
            race.dataset = replace(race.dataset, train=replace(race.dataset.train, columns=columns))
            setting = setting.with_values({"clusters.by": "column", "clusters.column": _COLUMN})
        row = {"clustering": by, "groups": groups, "group_size": tried.batch_size // groups}
        row |= {"label_noise": self.base.data.label_noise, "target": target}
        row |= self.outlook.predict(clustering, setting)
        return row | _measure(setting, tried, race, target, clustering.num_clusters)


def _measure(config: Config, tried: Validation, race: Race, target: float, num_clusters: int) -> dict[str, Any]:
    """Steps to the target for Momentum, QHM and Discover at their chosen learning rates."""
    advised = recommend(num_clusters, config.batches.groups)

    def found(optimizer: str) -> Steps:
        own = config.with_values(
            {"optimizer.name": optimizer, "optimizer.beta": advised.beta, "optimizer.nu": advised.nu}
        )
        return race.steps(own, [{"learning_rate": rate} for rate in tried.learning_rates], target)

    momentum, plain, discover = _momentum(config, tried, race, target), found("qhm"), found("discover")
    low, high = _gain_interval(plain.by_seed, discover.by_seed)
    return {
        **_flat("momentum", momentum),
        **_flat("plain", plain),
        **_flat("discover", discover),
        "measured": plain.mean / discover.mean,
        "measured_low": low,
        "measured_high": high,
        "over_momentum": momentum.mean / discover.mean,
        "censored": min(plain.reached, discover.reached) < len(tried.seeds),
    }


def _given_up(row: dict[str, Any], seeds: int) -> str:
    """Who did not always arrive: then the gain is no more than a bound."""
    missing = [(name, seeds - row[f"{name}_reached"]) for name in ("momentum", "plain", "discover")]
    return "".join(f"; {name} not there with {count} of {seeds} seeds" for name, count in missing if count)


def _momentum(config: Config, tried: Validation, race: Race, target: float) -> Steps:
    plain = config.with_values({"optimizer.name": "momentum", "optimizer.beta": 0.9})
    return race.steps(plain, [{"learning_rate": rate} for rate in tried.learning_rates], target)


def _flat(name: str, steps: Steps) -> dict[str, Any]:
    return {
        f"{name}_rate": steps.values["learning_rate"],
        f"{name}_steps": steps.mean,
        f"{name}_steps_by_seed": list(steps.by_seed),
        f"{name}_reached": steps.reached,
    }


def _gain_interval(plain: Sequence[int], discover: Sequence[int]) -> tuple[float, float]:
    """A 95% bootstrap interval of the ratio of mean steps, over seeds (the same ones for both, so drawn together)."""
    pick = np.random.default_rng(0).integers(0, len(plain), (1000, len(plain)))
    ratio = np.asarray(plain, float)[pick].mean(axis=1) / np.asarray(discover, float)[pick].mean(axis=1)
    low, high = np.quantile(ratio, [0.025, 0.975])
    return float(low), float(high)


def rank_correlation(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Spearman's rank correlation of predicted and measured gains, with a bootstrap interval over settings."""
    predicted = np.array([row["predicted"] for row in rows])
    measured = np.array([row["measured"] for row in rows])
    rng = np.random.default_rng(0)
    again = []
    for _ in range(1000):
        pick = rng.integers(0, len(rows), len(rows))
        again.append(_spearman(predicted[pick], measured[pick]))
    known = [value for value in again if np.isfinite(value)]
    low, high = np.quantile(known, [0.025, 0.975]) if known else (float("nan"), float("nan"))
    return {
        "rank_correlation": _spearman(predicted, measured),
        "rank_correlation_low": float(low),
        "rank_correlation_high": float(high),
    }


def _spearman(a: np.ndarray, b: np.ndarray) -> float:
    if not np.ptp(a) or not np.ptp(b):  # all are equal, or there is one only
        return float("nan")
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])
