"""`discover diagnose`: which clusterings of a data set could help, for the batches as they will be drawn.

Gradients of a sample are taken once at the start and once after a short warm-up; every clustering is then judged from
the same two Gram matrices (`discover.lab.diagnostics.variance`). Images are read in pieces, see `gradient_sample`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from discover.lab.data import BatchPlan, Clustering, Dataset
from discover.lab.data.errors import no_column
from discover.lab.diagnostics.advisor import BETA, Advice, Candidate, advise
from discover.lab.diagnostics.batches import composed_batch_noise, measured_batch_noise
from discover.lab.diagnostics.embeddings import StreamingKMeans
from discover.lab.diagnostics.layers import ranked
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.config.sections import BatchConfig
from discover.lab.experiments.diagnose.advice import what_to_do
from discover.lab.experiments.diagnose.gradient_sample import DiagnosisOptions, GradientSample, judgeable, shares
from discover.lab.experiments.diagnose.how_long import seconds_needed
from discover.lab.experiments.run.build import build_data

__all__ = ["Diagnosis", "DiagnosisOptions", "diagnose"]

STAGES = ("start", "warm-up")
COMPOSED = 400
"""Batches that are composed where there is no formula, and drawn beside the formula where there is one."""


@dataclass(frozen=True)
class Diagnosis:
    """What was found: `rows`, the best clustering first, and what it was found on."""

    rows: list[Advice]
    facts: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """As plain numbers, strings, lists and dictionaries."""
        return {"kind": "diagnosis", **self.facts, "clusterings": [row.to_json() for row in self.rows]}


def diagnose(
    config: Config,
    options: DiagnosisOptions | None = None,
    *,
    dataset: Dataset | None = None,
    say: Callable[[str], None] = lambda line: None,
    estimate: Callable[[float], None] = lambda seconds: None,
) -> Diagnosis:
    """Ranks the clusterings of a data set by the share of the gradient's noise that lies between their clusters.

    Judged are: classes (as observed, where there is label noise), superclasses and the given column where the data
    set has them, augmentations for images, random clusters, and k-means with several k on pixels or features, on
    gradients of the last layer and on the projected full gradient.

    Args:
      config: the data, the model, and the batches as they will be drawn (`batches.groups`, `batches.group_size`).
      options: how much is measured.
      dataset: the data set, if it is there already; else images are read when they are asked for where that can be.
      say: takes one line of progress.
      estimate: takes the seconds that it will take, about, before it starts.

    Raises:
      DataError: the data set does not have the column.
    """
    options = options or DiagnosisOptions()
    config = config.check()
    dataset = build_data(config, lazy=True) if dataset is None else dataset
    columns = dataset.train.columns
    judged = [column for column in (config.clusters.values_of, options.column) if column is not None]
    for column in judged:
        if column not in columns:
            raise no_column(column, sorted(columns))
    work = GradientSample(config, dataset, options)
    numbers = _numbers(work, judged)
    estimate(seconds_needed(work, numbers))
    say(f"gradients of {len(work.chosen)} examples at the start")
    grams = {"start": work.gram(work.start)}
    say(f"{options.warmup_steps} steps of warm-up")
    warm = work.warm_up()
    say(f"gradients of {len(work.chosen)} examples after the warm-up")
    grams["warm-up"] = work.gram(warm)
    candidates, looked_into = [], None
    for name, ids, probs in _partitions(work, warm, judged, numbers, say):
        ids, probs = judgeable(ids, probs)
        if looked_into is None or name == _chosen(config, work):
            looked_into = name, ids, probs
        estimates = {stage: work.estimate(gram, ids, probs) for stage, gram in grams.items()}
        plan = _composition(work, name, ids, len(probs))
        noises = averaged = None
        if plan is not None:
            composed = partial(
                composed_batch_noise, cluster_ids=ids, drawn=plan.batches(0, COMPOSED).cluster_ids,
                group_size=config.batches.group_size, probs=plan.probs,
                cluster_sizes=work.whole_sizes(ids, len(probs)), seed=options.seed,
            )  # fmt: skip
            noises = {stage: composed(gram) for stage, gram in grams.items()}
            averaged = {stage: composed(gram, memory=BETA, bootstrap=0).noise for stage, gram in grams.items()}
        candidates.append(Candidate(name, len(probs), estimates, tuple(probs), noises, averaged))
    layers = None
    if looked_into is not None:
        say(f"layer by layer: {looked_into[0]}")
        found = work.layers(warm, *looked_into[1:])
        rows_of_layers = ranked(found, config.batches.groups, config.batches.group_size)
        layers = {"clusters": looked_into[0], "rows": rows_of_layers}
    if work.can_be_augmented:
        say("augmentations as clusters")
        estimates = {stage: work.augmented(params) for stage, params in (("start", work.start), ("warm-up", warm))}
        candidates.append(Candidate("augmentations", 3, estimates))
    batches = config.batches
    rows = advise(
        candidates,
        num_groups=batches.groups,
        group_size=batches.group_size,
        num_parameters=work.network.num_parameters,
        bytes_per_value=np.dtype(config.optimizer.get("buffer_dtype") or "float32").itemsize,
    )
    facts = {
        "data": dataset.name,
        "examples": work.size,
        "model": config.model.name,
        "parameters": work.network.num_parameters,
        "label_noise": config.data.label_noise,
        "groups": batches.groups,
        "group_size": batches.group_size,
        "composition": batches.composition,
        "sample": len(work.chosen),
        "warmup_steps": options.warmup_steps,
        "stages": list(STAGES),
        "layers": layers,
        "measured": _as_drawn(work, grams["warm-up"]),
        "summary": _summary(rows, _chosen(config, work)) + _about_composition(batches, candidates),
        "next": what_to_do(
            _first(rows, _chosen(config, work)), batches.groups, batches.composition, next_byte=dataset.next_byte
        ),
    }
    return Diagnosis(rows, facts)


def _partitions(
    work: GradientSample, params: Any, columns: list[str], numbers: list[int], say: Callable[[str], None]
) -> Iterator[tuple[str, NDArray, NDArray[np.float64]]]:
    """Name, the sample's cluster ids and the clusters' probabilities, of every clustering that is a partition."""
    train, options, chosen = work.dataset.train, work.options, work.chosen
    if not work.dataset.next_byte:  # else there are no labels
        yield work.classes, *shares(work.labels, chosen)
    if work.noise is not None:
        yield "true classes", *shares(train.labels, chosen)
    for column in dict.fromkeys(("superclass", *columns)):
        if column in train.columns:
            ids = np.asarray(Clustering.from_column(train.columns[column]).assignments)
            yield f"column {column}" if column != "superclass" else "superclasses", *shares(ids, chosen)
    classes = _kinds(work, columns)
    ids = np.asarray(Clustering.random(work.size, min(classes, work.size), options.seed).assignments)
    yield f"random, {classes}", *shares(ids, chosen)
    embeddings = {
        **({} if train.text else {"pixels" if len(train.images.shape) == 4 else "features": work.pixels}),
        "last-layer gradients": work.embedding("last-layer", params),
        "projected gradients": work.embedding("projected", params),
    }
    fitted = np.sort(work.rng.permutation(work.size)[: min(options.stream, work.size)])
    for kind, embed in embeddings.items() if numbers else ():
        # One pass finds the centres for every k, one counts, one assigns the sample: no embedding is kept.
        models = [StreamingKMeans(number, seed=options.seed) for number in numbers]
        for piece in _told(embed(fitted), len(fitted), f"k-means on {kind}", say):
            for model in models:
                model.partial_fit(piece)
        counts = [np.zeros(number) for number in numbers]
        for piece in _told(embed(fitted), len(fitted), f"k-means on {kind}, sizes", say):
            for count, model in zip(counts, models):
                count += np.bincount(model.assign(piece), minlength=len(count))
        found: list[list[NDArray[np.int32]]] = [[] for _ in numbers]
        for piece in embed(chosen):
            for parts, model in zip(found, models):
                parts.append(model.assign(piece))
        for number, parts, count in zip(numbers, found, counts):
            yield f"k-means on {kind}, {number}", np.concatenate(parts), count / count.sum()


def _told(
    pieces: Iterator[NDArray[np.float32]], total: int, what: str, say: Callable[[str], None]
) -> Iterator[NDArray[np.float32]]:
    """The same pieces; how far they have come is said."""
    done = 0
    for piece in pieces:
        say(f"{what}: {done:,} of {total:,} examples")
        yield piece
        done += len(piece)


def _kinds(work: GradientSample, columns: list[str]) -> int:
    """How many clusters to look for: as many as there are classes; of text without a label, as in a column."""
    if not work.dataset.next_byte:
        return work.dataset.num_classes
    return max([8, *(len(np.unique(work.dataset.train.columns[column])) for column in columns)])


def _numbers(work: GradientSample, columns: list[str]) -> list[int]:
    """The k of k-means for which there are examples enough."""
    kinds = _kinds(work, columns)
    numbers = work.options.numbers or tuple(dict.fromkeys((max(2, kinds // 2), kinds, 2 * kinds)))
    return [number for number in numbers if number <= len(work.chosen) // 4]


def _composition(work: GradientSample, name: str, ids: NDArray, num_clusters: int) -> BatchPlan | None:
    """The plan of batches that do not draw their clusters independently, for one clustering of the sample.

    None where the formula is right (random; shuffled has its own column), and for given clusters that are those of
    another clustering.
    """
    batches = work.config.batches
    if batches.composition not in ("balanced", "given"):
        return None
    given = batches.given_ids
    if given is not None and (name != work.given_for or given.max(initial=0) >= num_clusters):
        return None
    return BatchPlan(
        np.zeros(len(ids), np.int32), Clustering.from_column(ids), groups=batches.groups, group_size=1,
        composition=batches.composition, seed=work.options.seed, given=given,
    )  # fmt: skip


def _as_drawn(work: GradientSample, gram: NDArray[np.float64]) -> dict[str, Any] | None:
    """The noise of batches of class-pure groups really drawn from the sample, beside the formula's.

    None where batches have given clusters that are not classes, or that the sample does not have all.
    """
    batches = work.config.batches
    if work.dataset.next_byte:
        return None
    classes, ids = np.unique(work.labels[work.chosen], return_inverse=True)
    given = batches.given_ids
    if given is not None and (work.given_for is None or given.max(initial=0) >= len(classes)):
        return None
    clustering = Clustering.from_column(ids)
    plan = BatchPlan(
        ids, clustering, groups=batches.groups, group_size=batches.group_size,
        composition=batches.composition, seed=work.options.seed, given=given,
    )  # fmt: skip
    drawn = plan.batches(0, COMPOSED).indices.reshape(COMPOSED, -1)
    probs = clustering.probs if given is None else plan.probs
    found = measured_batch_noise(gram, ids, drawn, probs, seed=work.options.seed)
    return {
        "clustering": work.classes,
        "composition": batches.composition,
        "batches": COMPOSED,
        **asdict(found),
    }


def _about_composition(batches: BatchConfig, candidates: list[Candidate]) -> list[str]:
    """For which rows the order of the clusters counts, where it is not random."""
    if batches.composition == "random":
        return []
    if batches.composition == "shuffled":
        return ["Batches are shuffled: their column counts; on them Discover has one cluster and is Momentum (QHM)."]
    others = [candidate.name for candidate in candidates if candidate.noises is None]
    line = f"Batches are {batches.composition}: shares and gains are for {COMPOSED} batches composed so"
    return [f"{line}, except for independent draws in: {', '.join(others)}." if others else f"{line}."]


def _is_given(row: Advice) -> bool:
    return not row.name.startswith(("k-means", "random"))


def _first(rows: list[Advice], chosen: str | None) -> Advice:
    """The clustering that is trained with; or else the best that is given, or else the best."""
    own = (row for row in rows if row.name == chosen)
    return next(own, next(filter(_is_given, rows), rows[0]))


def _chosen(config: Config, work: GradientSample) -> str | None:
    """The name of the clustering that the user trains with, as the table has it; None if it is not among them."""
    column = config.clusters.values_of
    if column is not None:
        return f"column {column}"
    return work.classes if config.clusters.by == Config().clusters.by else None


def _summary(rows: list[Advice], chosen: str | None) -> list[str]:
    """A few sentences: the clustering that is trained with, the best that is given, the best found, the control."""
    own = [row for row in rows if row.name == chosen]
    given = [row for row in rows if _is_given(row)]
    found = [row for row in rows if row.name.startswith("k-means")]
    control = [row for row in rows if row.name.startswith("random")]
    return list(dict.fromkeys(part[0].text for part in (own, given, found, control) if part))
