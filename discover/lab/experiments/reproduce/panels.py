"""What a result consists of: panels, each a table and a figure, of rows, each an optimizer in a setting.

Every row of a panel has the same budget: each learning rate is tried with the tuning seeds, a grid whose best rate is
at its end goes on there (at most so many steps), and the chosen one is trained with all seeds. Where one more number
is tuned, what is left of a budget goes into its values, at the chosen learning rate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from discover.lab.data import CLUSTERINGS
from discover.lab.experiments.compare.scores import Quantity
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.presets.preset import Hyperparameters
from discover.lab.experiments.presets.presets import get_preset
from discover.lab.experiments.reproduce.scales import Scale
from discover.registry import OPTIMIZERS

Figure = Literal["comparison", "structures", "groups", "grid", "ranking"]
RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
OTHER_RATES = {"adam": (0.00003, 0.0001, 0.0003, 0.001, 0.003), "muon": (0.0003, 0.001, 0.003, 0.01, 0.03)}
"""By the plain optimizer that one is or is compared with: as many, as far apart, around where those are best."""
Rates = Mapping[str, tuple[float, ...]]
"""Grids by optimizer."""


@dataclass(frozen=True)
class Row:
    """One line of a panel's table."""

    label: str  # `OPTIMIZER` or `OPTIMIZER-VARIANT`, unique in its panel
    config: Config  # everything but the learning rate and the seed
    learning_rates: tuple[float, ...]  # the grid
    facets: Mapping[str, Any] = field(default_factory=dict)  # what the figure arranges the rows by
    reference: bool = False  # whether it is drawn as a line to compare with (the control)
    further: tuple[Hyperparameters, ...] = ()  # what else is tried at the best learning rate, in this order


@dataclass(frozen=True)
class Panel:
    """A table and a figure."""

    name: str  # of its folder
    title: str  # of its figure
    rows: tuple[Row, ...]  # in the order of the table
    seeds: tuple[int, ...]  # of the chosen learning rate
    tuning_seeds: tuple[int, ...]  # of every learning rate
    figure: Figure = "comparison"  # how it is drawn
    checkpoints: bool = False  # whether its runs are long enough to be worth continuing in the middle
    extensions: int = 0  # how many rates a row may add to its grid, one at a time, while the best one is at its end
    tuning: Mapping[str, Any] = field(default_factory=dict)  # what is changed while rates are chosen: shorter runs
    budget: int | None = None  # settings that are tried for a row with further hyperparameters, exactly
    measure: Quantity = "accuracy"  # what a learning rate is chosen by, and what the table and the figure show

    @property
    def num_trainings(self) -> int:
        """How many networks are trained for it at the least, if none is there yet."""
        extra = len(self.seeds if self.tuning else set(self.seeds) - set(self.tuning_seeds))
        return sum((self.budget or len(row.learning_rates)) * len(self.tuning_seeds) + extra for row in self.rows)

    def most_rates(self, row: Row) -> int:
        """How many learning rates may be tried: of a budget one is left for a further hyperparameter."""
        return self.budget - bool(row.further) if self.budget else len(row.learning_rates) + self.extensions


@dataclass(frozen=True)
class Result:
    """One of our results, at some scale."""

    name: str  # one of :data:`RESULTS`
    question: str  # what it answers
    panels: tuple[Panel, ...]  # in order
    # rows (panel, label) of which ‖ḡ − Σ p_n g_n‖ is measured as well, at the learning rate chosen for them
    drift: tuple[tuple[str, str], ...] = ()


class Maker:
    """Makes rows at one scale."""

    def __init__(self, scale: Scale):
        self.scale = scale

    def row(
        self,
        optimizer: str,
        variant: str = "",
        *,
        data: str = "cifar10",
        clusters: str = "classes",
        groups: int = 8,
        length: float = 1.0,
        changes: Mapping[str, Any] | None = None,
        hyperparameters: Hyperparameters | None = None,
        rates: tuple[float, ...] | None = None,
        lowest_rate: bool = True,
        facets: Mapping[str, Any] | None = None,
        reference: bool = False,
        label: str | None = None,
        further: Sequence[Hyperparameters] = (),
    ) -> Row:
        """An optimizer with the library's defaults (or ``hyperparameters``) in a setting.

        ``clusters`` is a clustering, or a column of the data set. Where the embedded digits stand for all data, their
        classes stand for all columns.

        Without ``lowest_rate`` the grid begins one rate higher: at eight groups and clean labels the lowest is far
        from the best one for every optimizer (results-a). Where it is not, the grid goes on to it.
        """
        scale = self.scale
        values = dict(hyperparameters or get_preset("digits").hyperparameters(optimizer))
        values.pop("learning_rate", None)
        config, batch = self._start(data, clusters)
        config = config.with_values(
            {
                "optimizer.name": optimizer,
                **{f"optimizer.{key}": value for key, value in values.items()},
                "batches.groups": groups,
                "batches.group_size": batch // groups,
                "training.on_nonfinite": "stop",
                **(changes or {}),
            }
        )
        if length != 1.0:
            kind = "epochs" if config.training.epochs is not None else "steps"
            longer = length * getattr(config.training, kind)
            config = config.with_values({f"training.{kind}": int(longer) if kind == "steps" else longer})
        if rates is None:
            grid = OTHER_RATES.get(OPTIMIZERS[optimizer].baseline or optimizer, RATES)
            rates = tuple(rate for rate in grid[scale.every_rate] if lowest_rate or rate != grid[0])
        rates = tuple(float(f"{scale.faster * rate:.1g}") for rate in rates) if scale.faster != 1 else rates
        label = label or (f"{optimizer}-{variant}" if variant else optimizer)
        return Row(label, config, rates, {"optimizer": optimizer, **(facets or {})}, reference, tuple(further))

    def rows(
        self,
        who: Sequence[tuple[str, str, Hyperparameters | None]],
        rates: Rates,
        *,
        where: str = "",
        facets: Mapping[str, Any] | None = None,
        **setting: Any,
    ) -> list[Row]:
        """Several in one setting: (optimizer, variant, hyperparameters), each on its grid.

        Where the figure arranges them by ``facets``, a variant counts as an optimizer of its own.
        """
        return [
            self.row(
                optimizer,
                f"{variant} {where}".strip(),
                hyperparameters=values,
                rates=rates[optimizer],
                facets=facets and {**facets, "optimizer": f"{optimizer}-{variant}" if variant else optimizer},
                **setting,
            )
            for optimizer, variant, values in who
        ]

    def shuffled(self, optimizer: str, *, changes: Mapping[str, Any] | None = None, **setting: Any) -> Row:
        """The control: batches without regard to clusters."""
        changes = {"batches.composition": "shuffled", **(changes or {})}
        return self.row(optimizer, "shuffled", changes=changes, reference=True, **setting)

    def _start(self, data: str, clusters: str) -> tuple[Config, int]:
        """The configuration of a data set with these clusters, and how many examples a batch has."""
        other, column = self.scale.others.get(data), clusters not in CLUSTERINGS
        if other is not None:
            by = {"clusters.by": "column", "clusters.column": clusters} if column else {"clusters.by": clusters}
            return Config(name=data).with_values({**other.changes, **by}), other.batch
        clusters = "classes" if column else clusters
        preset = get_preset(self.scale.presets[clusters])
        return preset.config.with_values({**self.scale.changes, "clusters.by": clusters}), self.scale.batch

    def panel(self, name: str, title: str, rows: Sequence[Row], **options: Any) -> Panel:
        """A panel with this scale's seeds."""
        values: dict[str, Any] = {"seeds": self.scale.seeds, "tuning_seeds": self.scale.tuning_seeds, **options}
        values.setdefault("extensions", self.scale.extensions)
        return Panel(name, title, tuple(rows), **values)


def so_many(groups: int) -> str:
    """A number of groups as a label says it: `1 group`, `8 groups`."""
    return f"{groups} group{'s' if groups > 1 else ''}"


def plain(names: Iterable[str]) -> list[tuple[str, str, None]]:
    """These optimizers with the hyperparameters that they have on the digits, for :meth:`Maker.rows`."""
    return [(name, "", None) for name in names]
