"""The paper's settings: every hyperparameter of its tables, and what it reports.

Each Discover optimizer is there twice: as printed (`paper_discover`, …, with the paper's α, α_n and ν) and as ours
(`discover`, …), mapped to (β, ν, μ') by :func:`discover.map_to_family`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from discover.lab.experiments.config.config import (
    BatchConfig,
    ClustersConfig,
    Config,
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    TrainingConfig,
)
from discover.lab.experiments.presets.digits import BY_DEFAULT, DISCOVER_ADAM, MUON
from discover.lab.experiments.presets.paper_search import SEARCHED_ON_CIFAR, SEARCHED_ON_IMAGENET
from discover.lab.experiments.presets.preset import Hyperparameters, Preset

PAPERS = ("discover", "discover_qhm", "discover_igt")
"""The paper's own optimizers; `paper_…` are the printed ones."""


@dataclass(frozen=True)
class PaperPair:
    """A tuned setting of a Discover optimizer, in the paper's letters."""

    learning_rate: float  # μ
    alpha: float  # α, of the mean
    alpha_n: float  # α_n, of the buffers
    num_groups: int  # K, the cores of the setup in which it was tuned
    num_clusters: int  # N, likewise
    nu: float | None = None  # the γ of Discover-QHM, else None
    tail_fraction: float | None = None  # of Discover-IGT, else None

    def printed(self) -> Hyperparameters:
        """For the `paper_*` optimizers."""
        values = {"learning_rate": self.learning_rate, "alpha": self.alpha, "alpha_n": self.alpha_n}
        return values | self._extra() | ({} if self.nu is None else {"nu": self.nu})

    def mapped(self) -> Hyperparameters:
        r"""For ours: (β, ν, μ') that follow the same trajectory when the devices' buffer changes are summed.

        Discover-QHM as printed moves a buffer by a·δ_n with a = 1 − γ(1 − α_n) and steps along ḡ + (α + 1 − α_n)Δ,
        where Discover has a = α_n and ḡ + Δ. Hence the same β and μ' at α_n = a, and 1 − νβ = (α + 1 − α_n)/r.

        Raises:
            ValueError: the pair lies outside the family.
        """
        from discover import map_to_family

        rate = self.alpha_n if self.nu is None else 1 - self.nu * (1 - self.alpha_n)
        weight = 1.0 if self.nu is None else self.alpha + 1 - self.alpha_n
        ratio = self.alpha * self.num_clusters / (rate * self.num_groups)
        found = map_to_family(
            self.learning_rate, self.alpha, rate, num_groups=self.num_groups, num_clusters=self.num_clusters
        )
        nu = (1 - weight / ratio) / found.beta
        if not 0 <= nu <= 1:
            raise ValueError(f"{self} gives nu = {nu:g}, outside [0, 1]: use the paper_* optimizers for it")
        return {"learning_rate": found.learning_rate, "beta": found.beta, "nu": nu, **self._extra()}

    def _extra(self) -> dict[str, float]:
        return {} if self.tail_fraction is None else {"tail_fraction": self.tail_fraction}


@dataclass(frozen=True)
class Tuned:
    """The paper's chosen values for one setting: learning rates and what else was tuned."""

    sgd: float | None
    momentum: float
    qhm: tuple[float, float, float]  # μ, β, γ
    igt: tuple[float, float]  # μ, tail_fraction
    discover: PaperPair
    discover_qhm: PaperPair
    discover_igt: PaperPair
    adam: float = 0.001

    def optimizers(self, ours: Callable[[PaperPair], Callable[[], Hyperparameters]]) -> dict:
        """Each optimizer's hyperparameters; the plain ones first."""
        plain: dict[str, Hyperparameters] = {
            "momentum": {"learning_rate": self.momentum, "beta": 0.9},
            **({} if self.sgd is None else {"sgd": {"learning_rate": self.sgd}}),
            "qhm": dict(zip(("learning_rate", "beta", "nu"), self.qhm)),
            # The paper's IGT adds gradients to its momentum unweighted; ours weighs them by 1 − β = 0.1.
            "igt": {"learning_rate": self.igt[0] / (1 - 0.9), "beta": 0.9, "tail_fraction": self.igt[1]},
            "adam": {"learning_rate": self.adam, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
        }
        pairs = {name: getattr(self, name) for name in PAPERS}
        return {
            **plain,
            **{name: ours(pair) for name, pair in pairs.items()},
            # Ours: the paper has none of these.
            "discover_adam": {"learning_rate": 0.0003, **DISCOVER_ADAM},
            "muon": {"learning_rate": 0.003, **MUON},
            "discover_muon": {"learning_rate": 0.003, **MUON},
            **{f"paper_{name}": pair.printed() for name, pair in pairs.items()},
        }


def _cifar(qhm: PaperPair, *, sgd: float, momentum: float, qhm_plain: tuple[float, float], igt: float, igt_ours: float):
    def pair(learning_rate: float, tail_fraction: float | None = None) -> PaperPair:
        return PaperPair(learning_rate, 0.095, 0.1, 8, 10, tail_fraction=tail_fraction)

    return Tuned(
        sgd=sgd,
        momentum=momentum,
        qhm=(qhm_plain[0], 0.9, qhm_plain[1]),
        igt=(igt, 18.0),
        discover=pair(0.01),
        discover_qhm=qhm,
        discover_igt=pair(igt_ours, 18.0),
    )


CIFAR: Mapping[float, Tuned] = {  # by label noise
    0.0: _cifar(
        PaperPair(0.01, 0.9, 0.1, 8, 10, nu=0.9), sgd=0.01, momentum=0.03, qhm_plain=(0.1, 0.9), igt=0.01, igt_ours=0.01
    ),
    0.2: _cifar(
        PaperPair(0.1, 0.9, 0.1, 8, 10, nu=0.7), sgd=0.175, momentum=0.1, qhm_plain=(0.175, 0.9), igt=0.1, igt_ours=0.1
    ),
    0.8: _cifar(
        PaperPair(0.1, 0.6, 0.1, 8, 10, nu=0.6), sgd=0.1, momentum=0.01, qhm_plain=(0.1, 0.6), igt=0.01, igt_ours=0.1
    ),
}
IMAGENET = Tuned(
    sgd=None,
    momentum=0.1,
    qhm=(0.1, 0.999, 0.7),
    igt=(0.1, 90.0),
    discover=PaperPair(0.1, 0.1, 0.01, 128, 3),
    discover_qhm=PaperPair(0.1, 0.9, 0.1, 128, 3, nu=0.9),
    discover_igt=PaperPair(0.1, 0.9, 0.1, 128, 3, tail_fraction=180.0),
)
CIFAR_RATES = (0.001, 0.01, 0.03, 0.1, 0.175)
IMAGENET_RATES = (0.03, 0.1, 0.3)

_CLEAN = {"momentum": 95.3, "discover": 94.2, "qhm": 95.1, "discover_qhm": 95.4, "igt": 95.3, "discover_igt": 94.2}
_CIFAR_SETTINGS = (  # name, summary, noise, clusters, reported
    ("classes", "classes as clusters, clean labels", 0.0, ClustersConfig(by="classes"), _CLEAN),
    ("classes-noise02", "classes as clusters, label noise 0.2", 0.2, ClustersConfig(by="classes"), {}),
    (
        "classes-noise08",
        "classes as clusters, label noise 0.8",
        0.8,
        ClustersConfig(by="classes"),
        {"discover": 85.9, "adam": 19.8},
    ),
    (
        "augment",
        "augmentations as clusters (flip, Mixup, CutMix), clean labels",
        0.0,
        ClustersConfig(by="augmentations"),
        {"discover": 93.6},
    ),
    (
        "augment-noise08",
        "augmentations as clusters, label noise 0.8 (the paper: Discover clearly worse here)",
        0.8,
        ClustersConfig(by="augmentations"),
        {},
    ),
    ("random", "10 random clusters, clean labels", 0.0, ClustersConfig(by="random", number=10), {"discover": 91.09}),
)


def paper_presets() -> Iterator[Preset]:
    """Every setting of the paper, and a reduced twin (`…-small`) of each CIFAR-10 one."""
    for name, summary, noise, clusters, reported in _CIFAR_SETTINGS:
        full = _cifar_preset(name, summary, noise, clusters, reported)
        yield full
        yield _small(full)
    yield _imagenet_preset("imagenet-augment", 0.0)
    yield _imagenet_preset("imagenet-augment-noise08", 0.8)


def _cifar_preset(
    name: str, summary: str, noise: float, clusters: ClustersConfig, reported: Mapping[str, float]
) -> Preset:
    return Preset(
        name=f"cifar10-{name}",
        summary=f"CIFAR-10, WideResNet-26-10: {summary}.",
        config=Config(
            data=DataConfig(
                source="cifar10", validation=0.0, label_noise=noise, padding=4, flip=True, scale="unit"
            ),
            clusters=clusters,
            batches=BatchConfig(composition="random", groups=8, group_size=32),
            model=ModelConfig(
                name="wide_resnet", dtype="bfloat16", arguments={"depth": 26, "width": 10, "dropout": 0.3}
            ),
            optimizer=OptimizerConfig(arguments={"l2": 5e-4}),
            training=TrainingConfig(
                steps=None, epochs=400.0, warmup_steps=5, schedule="cosine", seeds=(0, 1, 2, 3, 4),
                steps_per_dispatch=195, log_every=195, eval_every=1950, checkpoint_every=3900,
            ),
        ),
        optimizers=CIFAR[noise].optimizers(lambda pair: pair.mapped),
        compare=BY_DEFAULT,
        learning_rates=CIFAR_RATES,
        target_accuracy=0.9 if noise == 0 else 0.6,
        source="paper, CIFAR-10 experiments and appendix",
        reported=reported,
        cost="78,000 steps: about half an hour a seed on one H200 at 22 to 26 ms a step",
        search=SEARCHED_ON_CIFAR,
    )  # fmt: skip


def _small(full: Preset) -> Preset:
    smaller = {"depth": 16, "width": 4, "dropout": 0.0}
    return replace(
        full,
        name=f"{full.name}-small",
        summary=full.summary.replace("WideResNet-26-10", "WideResNet-16-4, 30 epochs"),
        config=replace(full.config, model=replace(full.config.model, arguments=smaller)).with_values(
            {
                "data.validation": 0.1,
                "training.epochs": 30.0,
                "training.seeds": [0, 1, 2],
                # Networks side by side would make every convolution a grouped one, each with its own weights.
                "training.together": 1,
                "training.eval_every": 195,
                "training.checkpoint_every": 1950,
            }
        ),
        target_accuracy=0.7 if full.target_accuracy > 0.8 else 0.3,
        reported={},
        source=f"reduced twin of {full.name}",
        cost="minutes per optimizer and seed on one H200",
    )


def _imagenet_preset(name: str, noise: float) -> Preset:
    # The paper's pairs with 128 cores and 3 clusters lie outside the family, so ours take the library's defaults.
    optimizers = IMAGENET.optimizers(_library_defaults)
    return Preset(
        name=name,
        summary="ImageNet, ResNet-v1-50: augmentations as clusters (flip, Mixup, CutMix), "
        + ("clean labels." if noise == 0 else f"label noise {noise:g}."),
        config=Config(
            data=DataConfig(
                source="folder", size=256, validation=0.0, label_noise=noise, crop_size=224, flip=True, scale="signed"
            ),
            clusters=ClustersConfig(by="augmentations"),
            batches=BatchConfig(composition="random", groups=128, group_size=32),
            model=ModelConfig(name="resnet", dtype="bfloat16", arguments={"depth": 50}),
            optimizer=OptimizerConfig(arguments={"weight_decay": 0.001}),
            training=TrainingConfig(
                steps=31_200, warmup_steps=5, schedule="cosine", seeds=(0, 1, 2, 3, 4), steps_per_dispatch=10,
                log_every=100, eval_every=1250, checkpoint_every=1250, group_mode="map",
            ),
        ),
        optimizers=optimizers,
        compare=tuple(name for name in BY_DEFAULT if name in optimizers),
        learning_rates=IMAGENET_RATES,
        target_accuracy=0.7 if noise == 0 else 0.3,
        source="paper, ImageNet experiments and appendix (its 76% is Momentum with plain augmentation only)",
        cost="31,200 steps of 4,096 images; the paper used 64 TPUv3, and we have not timed it",
        search=SEARCHED_ON_IMAGENET,
    )  # fmt: skip


def _library_defaults(pair: PaperPair) -> Callable[[], Hyperparameters]:
    extra = {} if pair.tail_fraction is None else {"tail_fraction": pair.tail_fraction}
    nu = 0.95 if pair.nu is None else pair.nu
    return lambda: {"learning_rate": pair.learning_rate, "beta": 0.95, "nu": nu, **extra}
