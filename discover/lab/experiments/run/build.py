"""From a configuration to the pieces of a run: data, clusters, batches, network, optimizer, members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import discover
from discover.gpu import device
from discover.lab.data import SOURCES, BatchPlan, Clustering, Dataset, LabelNoise, cluster, load
from discover.lab.experiments.config.check import check_length, check_optimizer
from discover.lab.experiments.config.config import ClustersConfig, Config, ConfigError
from discover.lab.models import MODELS, Network, build_network, conv_as_matmul
from discover.lab.training.learning_rate import schedule
from discover.lab.training.programs import Members
from discover.lab.training.step import Hyper, MakeOptimizer
from discover.registry import OPTIMIZERS

SMALL_MODEL = 3_000_000
"""Parameters up to which all members train at once unless the configuration says otherwise."""


@dataclass(frozen=True)
class Member:
    """One network in training: a seed, and hyperparameters that differ from the configuration's."""

    seed: int
    hyperparameters: Mapping[str, float]

    def __init__(self, seed: int, hyperparameters: Mapping[str, float] | None = None):
        object.__setattr__(self, "seed", int(seed))
        values = {name: float(value) for name, value in (hyperparameters or {}).items()}
        object.__setattr__(self, "hyperparameters", values)


def build_data(config: Config, *, lazy: bool = False, loaded: Dataset | None = None) -> Dataset:
    """Loads the data set and sets the validation split aside.

    Args:
        config: where it is.
        lazy: see :func:`discover.lab.data.load`.
        loaded: what :func:`load_data` gave for this configuration, if it was called already.
    """
    dataset = load_data(config, lazy=lazy) if loaded is None else loaded
    if config.data.validation > 0 and dataset.validation is None:
        dataset = dataset.split_validation(config.data.validation, config.data.split_seed)
    return dataset


def load_data(config: Config, *, lazy: bool = False) -> Dataset:
    """The data set as its source gives it."""
    data = config.data
    said = {"path": data.path, "image_size": data.size, "layout": data.layout, "label": data.label}
    said["on_bad_image"] = None if data.on_bad_image == "error" else data.on_bad_image
    options = {name: value for name, value in said.items() if value is not None}
    for name in [] if ":" in data.source else options:  # one's own function says itself what it takes
        able = [source for source in SOURCES if name in SOURCES.find(source).arguments]
        if data.source not in able:
            where = "" if data.path is None else f", and {data.path} is read as {data.source}"
            option = "--data" if name == "path" else f"--{name.replace('_', '-')}"
            raise ConfigError(f"{option} is for data of the kinds {', '.join(able)}{where}")
    if config.clusters.values_of and "clusters" in SOURCES.find(data.source).arguments:
        options["clusters"] = config.clusters.values_of  # what makes the clusters is no feature
    return load(data.source, lazy=lazy, **options)


def build_plan(config: Config, dataset: Dataset, seed: int, cluster_names: Sequence[str] | None = None) -> BatchPlan:
    """The batches of one seed. Clusters of observed labels go with that seed's label noise.

    ``cluster_names`` are those of all workers, where each has data of its own.
    """
    noise = None
    if config.data.label_noise > 0:
        noise = LabelNoise(config.data.label_noise, dataset.num_classes, seed)
    clustering = build_clustering(config, dataset, noise)
    return BatchPlan(
        dataset.train.labels,
        clustering if cluster_names is None else clustering.among(cluster_names),
        groups=config.batches.groups,
        group_size=config.batches.group_size,
        composition=config.batches.composition,
        seed=seed,
        noise=noise,
        given=config.batches.given_ids,
    )


def build_clustering(config: Config, dataset: Dataset, noise: LabelNoise | None = None) -> Clustering:
    """The clusters of the training split."""
    clusters = config.clusters
    return cluster(
        dataset,
        clusters.by,
        num_clusters=clusters.number,
        seed=clusters.seed,
        column=clusters.column,
        path=clusters.path,
        noise=noise,
        labels=clusters.labels,
    )


def in_parts(config: Config, members: Sequence[Member], num_parameters: int) -> list[list[Member]]:
    """The members part by part, ``training.together`` of them each; the last part may have fewer."""
    together = config.training.together
    if together is None:
        together = len(members) if num_parameters <= SMALL_MODEL and not buffers_on_host(config) else 1
    return [list(members[first : first + together]) for first in range(0, len(members), together)]


def total_steps(config: Config, dataset: Dataset) -> int:
    """The number of steps: as given, or as many as the epochs have."""
    if config.training.steps is not None:
        return config.training.steps
    assert config.training.epochs is not None  # Config.check
    batch = config.batches.groups * config.batches.group_size
    steps = config.training.epochs * len(dataset.train) / batch
    return check_length(max(1, round(min(steps, 1e18))))


def build_network_for(config: Config, dataset: Dataset) -> Network:
    """The network, with the convolution that suits the optimizer and the device.

    Raises:
        ConfigError: the model lacks an option that is set, or cannot take such examples.
    """
    model, shape = config.model, dataset.example_shape
    if config.data.crop_size is not None and len(shape) == 3:
        shape = (config.data.crop_size, config.data.crop_size, shape[-1])
    kind = model.convolution
    if kind == "auto":
        grouped = config.optimizer.entry.clustered and config.batches.groups > 1
        kind = "matmul" if device.is_cpu() else "grouped" if grouped else "lax"
    reads = MODELS.find(model.name).reads_text
    if reads is not None and reads != dataset.train.text:
        has, other = ("text", "transformer") if dataset.train.text else ("no text", "mlp or cnn")
        raise ConfigError(f"model {model.name!r} cannot read {dataset.name}, which is {has}: set model.name={other}")
    convolutions = {"lax": None, "grouped": discover.grouped_conv_general_dilated, "matmul": conv_as_matmul}
    try:
        return build_network(
            model.name,
            shape,
            dataset.num_classes,
            dtype=jnp.dtype(model.dtype),
            conv_general_dilated=convolutions[kind],
            next_byte=dataset.next_byte,
            **model.arguments,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error


def traced_names(config: Config, members: Sequence[Member]) -> tuple[str, ...]:
    """The hyperparameters that are arguments of the program: those that are set, and not zero where zero is "off".

    Raises:
        ConfigError: a member sets a hyperparameter that the optimizer does not have, that not all members have, or
            to a value that cannot be.
    """
    settings = config.optimizer
    allowed = ("learning_rate", *settings.entry.hyperparameters, "clip_norm")
    for member in members:
        for key in member.hyperparameters:
            if key not in allowed:
                raise ConfigError(f"optimizer {settings.name!r} has no {key}; members may set {', '.join(allowed)}")
        check_optimizer(_with_hyperparameters(config, member).optimizer)
    result = []
    for key in allowed:
        own = settings.get(key)
        set_by = [key in member.hyperparameters for member in members]
        if own is None and any(set_by) and not all(set_by):
            raise ConfigError(f"members must all set {key}, since the configuration leaves it open")
        off = own is None or (own == 0 and key == "clip_norm")
        if any(set_by) or not off:
            result.append(key)
    return tuple(result)


def _with_hyperparameters(config: Config, member: Member) -> Config:
    return config.with_values({f"optimizer.{key}": value for key, value in member.hyperparameters.items()})


def build_members(
    config: Config, members: Sequence[Member], steps: int, names: Sequence[str] | None = None
) -> tuple[Members, list[int]]:
    """The members' arguments of the programs (as NumPy arrays), and the seeds whose batches are drawn.

    ``names`` are :func:`traced_names` of all members of a run, where these are some of them.
    """
    names = traced_names(config, members) if names is None else names
    seeds = list(dict.fromkeys(member.seed for member in members))
    hyper: dict[str, Any] = {
        name: np.asarray(
            [member.hyperparameters.get(name, config.optimizer.get(name)) for member in members], np.float32
        )
        for name in names
    }
    hyper["warmup_steps"] = np.full(len(members), config.training.warmup_steps, np.float32)
    hyper["total_steps"] = np.full(len(members), steps, np.float32)
    values: Any = (
        hyper,
        np.asarray([member.seed for member in members], np.int32),
        np.asarray([seeds.index(member.seed) for member in members], np.int32),
    )
    return Members(*values), seeds


def optimizer_factory(config: Config, probs: Sequence[float]) -> MakeOptimizer:
    """Returns ``hyper -> optimizer``, to be called inside compiled code with traced hyperparameters."""
    settings, entry = config.optimizer, config.optimizer.entry
    options: dict[str, Any] = {
        name: value for name, value in settings.arguments.items() if name not in entry.hyperparameters
    }
    if settings.decay == "kernels":
        options["mask"] = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)
    if entry.clustered:
        options["clusters"] = discover.Clusters(probs)
    if settings.buffered is not None:
        options["buffered"] = partial(_layers_called, "buffered", settings.buffered.split(","))
    if settings.adam_layers is not None:
        options["labels"] = partial(_labels, settings.adam_layers.split(","))
    name = config.training.schedule

    def make(hyper: Hyper) -> optax.GradientTransformationExtraArgs:
        rate = schedule(name, hyper["learning_rate"], hyper["warmup_steps"], hyper["total_steps"])
        tx = entry.make(rate, **{key: hyper[key] for key in entry.hyperparameters if key in hyper}, **options)
        return tx if entry.clustered or entry.name in OPTIMIZERS else _fed_the_mean(tx)

    return make


def _layers_called(key: str, names: Sequence[str], params: Any) -> Any:
    """A mask of the parameters of these layers: `blocks/5` is that of `blocks/5/conv1/kernel`."""
    paths = [
        jax.tree_util.keystr(path, simple=True, separator="/")
        for path, _ in jax.tree_util.tree_leaves_with_path(params)
    ]
    for name in names:
        if not any(f"{path}/".startswith(f"{name}/") for path in paths):
            layers = sorted({path.rpartition("/")[0] or path for path in paths})
            raise ConfigError(f"optimizer.{key}: there is no layer {name!r}; the layers are {', '.join(layers)}")
    chosen = [any(f"{path}/".startswith(f"{name}/") for name in names) for path in paths]
    return jax.tree.unflatten(jax.tree.structure(params), chosen)


def _labels(names: Sequence[str], params: Any) -> Any:
    """Muon's labels: "adam" for these layers, and for all that is no matrix."""
    return jax.tree.map(
        lambda named, p: "adam" if named or p.ndim < 2 else "muon", _layers_called("adam_layers", names, params), params
    )


def _fed_the_mean(tx: optax.GradientTransformation) -> optax.GradientTransformationExtraArgs:
    """A user's plain optimizer, maybe one of optax's: fed the mean over the groups unless it takes that itself."""
    tx = optax.with_extra_args_support(tx)
    param, grad = jax.ShapeDtypeStruct((2,), jnp.float32), jax.ShapeDtypeStruct((1, 2), jnp.float32)
    ids = jax.ShapeDtypeStruct((1,), jnp.int32)

    def update(param: jax.Array, grad: jax.Array, ids: jax.Array) -> Any:
        return tx.update(grad, tx.init(param), param, cluster_ids=ids, group_sizes=ids)[0]

    takes_groups = jax.eval_shape(update, param, grad, ids).shape == param.shape
    return tx if takes_groups else optax.chain(discover.mean_over_groups(), tx)


def buffers_on_host(config: Config) -> bool:
    """Whether a step fetches rows from the host's memory, which it cannot do for several members at once."""
    return config.optimizer.get("buffers") == "host"


def member_mode(config: Config) -> str:
    """How members are computed: side by side, or one after the other on CPUs and where buffers are on the host."""
    mode = "map" if buffers_on_host(config) else config.training.member_mode
    return mode if mode != "auto" else "map" if device.is_cpu() else "vmap"


def model_key(config: Config) -> str:
    """Says which configurations can share initial parameters and evaluation."""
    same = Config(data=replace(config.data, label_noise=0.0), model=config.model)  # labels are replaced on the host
    training = {"training.eval_batch": config.training.eval_batch, "training.member_mode": member_mode(config)}
    # The same function for all optimizers: evaluation has no weight gradient to split.
    return f"model {same.with_values(training).to_json()}"


def program_key(config: Config, names: Sequence[str], probs: Sequence[float]) -> str:
    """Says which configurations can share compiled programs: equal keys mean equal programs.

    How batches are drawn, and from which clusters, happens on the host; of that the program knows only how many
    clusters there are and how probable (the Discover family), and whether they say how to augment.
    """
    free: dict[str, Any] = {f"optimizer.{name}": None for name in names}
    free |= {"optimizer.learning_rate": 0.0, "optimizer.clip_norm": 0.0}
    same = replace(config.with_values(free), name="")
    loop = {"steps": 1, "epochs": None, "warmup_steps": 0, "seeds": (0,), "log_every": 1, "eval_every": 0}
    loop |= {"checkpoint_every": 0, "keep": 1, "together": None, "on_nonfinite": "stop", "track_variance": 0}
    drawn: dict[str, Any] = {"data.label_noise": 0.0, "batches.composition": "random", "batches.given": ()}
    same = same.with_values({**{f"training.{key}": value for key, value in loop.items()}, **drawn})
    clusters = config.clusters
    same = replace(same, clusters=ClustersConfig(by=clusters.by) if clusters.entry.augments else ClustersConfig())
    own = repr(tuple(probs)) if config.optimizer.entry.clustered else ""
    return f"{','.join(names)} {own} {same.to_json()}"
