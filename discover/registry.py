"""Tables of things that are chosen by name, and the one of optimizers.

An optimizer is one function and one entry below. Everything that asks "which optimizers are there, what can be set,
has it clusters, what is it called, how is it drawn, what is worth searching" reads this table: configuration, presets,
sweeps, reports, `bench`, and the contract that the tests hold every optimizer to. Nothing here imports jax, so that a
command line answers at once.

Instead of a name of the table, `module:function` stands for a user's own.
"""

import difflib
import importlib
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, get_args, get_origin


class UnknownName(ValueError):
    """A name that is not in a table; the message names the nearest one and all others."""

    exit_code = 2  # of a command that was given such a name


def nearest(kind: str, name: object, choices: Iterable[str]) -> UnknownName:
    """The error for a name that is none of ``choices``.

    >>> str(nearest("optimizer", "adm", ["adam", "sgd"]))
    "unknown optimizer 'adm': did you mean 'adam'? choose from adam, sgd"
    """
    names = list(choices)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UnknownName(f"unknown {kind} {name!r}: {hint}choose from {', '.join(names)}")


def choose(kind: str, name: str, choices: Iterable[str]) -> str:
    """``name``, if it is one of the choices; for words that have no table.

    Raises:
      UnknownName: it is none of them; the message names the nearest.
    """
    names = list(choices)
    if name not in names:
        raise nearest(kind, name, names)
    return name


def load_object(kind: str, path: str) -> Any:
    """What `module:name` names.

    >>> load_object("function", "math:sqrt")(4.0)
    2.0
    """
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise UnknownName(f"{kind} {path!r}: there is no module {error.name!r}") from None
    if not hasattr(module, attribute):
        raise UnknownName(f"{kind} {path!r}: module {module_name!r} has no {attribute!r}")
    return getattr(module, attribute)


class Named(Protocol):
    """An entry of a table."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


class Table(Mapping[str, T], Generic[T]):
    """Entries by name; `find` also takes `module:function`.

    Args:
      kind: what the entries are, for messages.
      entries: in the order in which they are listed.
      from_path: makes an entry of a user's own thing, from its `module:function` name.
    """

    def __init__(self, kind: str, entries: Iterable[T], from_path: Callable[[str], T]):
        self.kind, self._from_path = kind, from_path
        self._entries = {entry.name: entry for entry in entries}

    def find(self, name: str) -> T:
        """The entry of that name, or the one made of `module:function`.

        Raises:
          UnknownName: there is none; the message names the nearest.
        """
        if name in self._entries:
            return self._entries[name]
        if ":" in str(name):
            return self._from_path(name)
        raise nearest(self.kind, name, self._entries)

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


Shape = Literal["linear", "log", "tail"]


@dataclass(frozen=True)
class Axis:
    """The values of one hyperparameter on a grid; a search draws from the range between the smallest and the largest.

    Attributes:
      values: on a grid.
      shape: how the range is measured: evenly, in the logarithm (`log`), or in log(1 − value), for momenta (`tail`).
    """

    values: tuple[float, ...]
    shape: Shape = "linear"

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def middle(self) -> float:
        return sorted(self.values)[len(self.values) // 2]


@dataclass(frozen=True)
class Made:
    """An entry that is made by a function, whose arguments are what can be set.

    Attributes:
      name: as it is typed.
      factory: `module:function`.
    """

    given: ClassVar[tuple[str, ...]] = ()
    """The arguments that come from elsewhere, and cannot be set."""

    name: str
    factory: str

    @cached_property
    def make(self) -> Callable[..., Any]:
        """The factory itself, imported when it is first asked for."""
        return load_object(type(self).__name__.lower(), self.factory)

    @cached_property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """Everything that the factory takes by name."""
        # A class is asked for its __init__: flax's metaclass hides the signature.
        target = partial(self.make.__init__, None) if isinstance(self.make, type) else self.make
        found = inspect.signature(target).parameters
        return {name: one for name, one in found.items() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}

    @cached_property
    def arguments(self) -> Mapping[str, inspect.Parameter]:
        """What can be set, by name."""
        return {name: one for name, one in self.parameters.items() if name not in self.given}

    @cached_property
    def types(self) -> Mapping[str, Any]:
        """What each argument takes: `float`, `bool`, `int`, `str` or a `Literal`; others are left out."""
        found = {name: _type_of(one) for name, one in self.arguments.items()}
        return {name: one for name, one in found.items() if one is not None}

    @cached_property
    def hyperparameters(self) -> tuple[str, ...]:
        """The arguments that are numbers, so that runs of one compiled program may differ in them."""
        return tuple(name for name, one in self.types.items() if one is float)

    @cached_property
    def required(self) -> tuple[str, ...]:
        """The arguments without a default."""
        return tuple(name for name, one in self.arguments.items() if one.default is inspect.Parameter.empty)


@dataclass(frozen=True)
class Optimizer(Made):
    """One optimizer of the table.

    Attributes:
      name: as it is typed.
      factory: `module:function`; `function(learning_rate, …)`, or `function(learning_rate, clusters, …)` with clusters.
      label: as it is written in tables and figures.
      color: `#rrggbb`.
      clustered: whether it keeps something for each cluster, and so needs one gradient for each group.
      baseline: the plain optimizer that it is compared with; None for a plain one.
      search: what is worth trying, by hyperparameter.
    """

    given = ("learning_rate", "clusters", "mask", "buffered", "labels")
    by_layer: ClassVar[Mapping[str, str]] = {"buffered": "buffered", "adam_layers": "labels"}
    """Settings that name layers, and the argument that says the same of a tree of parameters."""

    label: str
    color: str
    clustered: bool = False
    baseline: str | None = None
    search: Mapping[str, Axis] = field(default_factory=dict)


_KINDS: Mapping[str, type] = {
    **dict.fromkeys(("float", "Scalar", "ScalarOrSchedule", "ArrayLike"), float),
    "bool": bool,
    "int": int,
    **dict.fromkeys(("str", "DTypeLike"), str),
}
"""What the words of an annotation stand for; of several, the first here."""


def _type_of(argument: inspect.Parameter) -> Any:
    """What an argument takes, by its annotation, or else by its default."""
    annotation = argument.annotation
    if annotation is inspect.Parameter.empty:
        return type(argument.default) if isinstance(argument.default, float | bool | int | str) else None
    if get_origin(annotation) is Literal:
        return annotation
    if isinstance(annotation, str):
        words = re.split(r"\W+", annotation)
    else:
        words = [getattr(one, "__name__", "") for one in get_args(annotation) or (annotation,)]
    return next((kind for word, kind in _KINDS.items() if word in words), None)


_PLAIN, _DISCOVER, _MUONS, _IGT, _PAPER = (
    f"discover.optimizers.{name}" for name in ("plain", "discover", "muon", "igt", "paper")
)
_RATES = Axis((0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0), "log")
_ADAM_RATES = Axis((0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1), "log")
_MUON_RATES = Axis((0.0003, 0.001, 0.003, 0.01, 0.03), "log")
_BETAS = Axis((0.8, 0.9, 0.95, 0.98), "tail")
_NUS = Axis((0.0, 0.5, 0.8, 0.95, 1.0))
_TAILS = Axis((2.0, 18.0, 90.0), "log")
_ALPHAS = Axis((0.001, 0.01, 0.03, 0.1, 0.3, 1.0), "log")
_MOMENTUM = {"learning_rate": _RATES, "beta": _BETAS}
_QHM = {**_MOMENTUM, "nu": _NUS}
_TAIL = {"tail_fraction": _TAILS}
_ADAM = {"learning_rate": _ADAM_RATES, "beta": _BETAS, "nu": _NUS}
_MUON = {"learning_rate": _MUON_RATES, "beta": _BETAS, "nu": _NUS}
_PRINTED = {"learning_rate": _RATES, "alpha": _ALPHAS, "alpha_n": _ALPHAS}


def own_label(path: str) -> str:
    """What a user's optimizer is called in tables and figures, from its `module:function` name alone.

    >>> own_label("mine:my_optimizer")
    'My optimizer'
    """
    return path.partition(":")[2].replace("_", " ").capitalize()


def _own(path: str) -> Optimizer:
    """A user's optimizer: it has clusters if its factory takes them."""
    clustered = "clusters" in inspect.signature(load_object("optimizer", path)).parameters
    return Optimizer(path, path, own_label(path), "#222222", clustered, None, {"learning_rate": _RATES})


def _clustered(name: str, module: str, label: str, color: str, baseline: str, search: Mapping[str, Axis]) -> Optimizer:
    return Optimizer(name, f"{module}:{name}", label, color, True, baseline, search)


OPTIMIZERS: Table[Optimizer] = Table(
    "optimizer",
    (
        Optimizer("momentum", f"{_PLAIN}:momentum", "Momentum", "#0072B2", search=_MOMENTUM),
        Optimizer("sgd", f"{_PLAIN}:sgd", "SGD", "#767676", search={"learning_rate": _RATES}),
        Optimizer("qhm", f"{_PLAIN}:qhm", "QHM", "#56B4E9", search=_QHM),
        Optimizer("igt", f"{_IGT}:igt_momentum", "IGT", "#009E73", search=_MOMENTUM | _TAIL),
        Optimizer("adam", f"{_PLAIN}:adam", "Adam", "#3B3B8F", search={"learning_rate": _ADAM_RATES, "beta1": _BETAS}),
        Optimizer("muon", f"{_MUONS}:muon", "Muon", "#117A65", search=_MUON),
        _clustered("discover", _DISCOVER, "Discover", "#D55E00", "momentum", _QHM),
        _clustered("discover_qhm", _DISCOVER, "Discover-QHM", "#A6478A", "qhm", _QHM),
        _clustered("discover_igt", _DISCOVER, "Discover-IGT", "#E69F00", "igt", _QHM | _TAIL),
        _clustered("discover_adam", _DISCOVER, "Discover-Adam", "#6A51C8", "adam", _ADAM),
        _clustered("discover_muon", _MUONS, "Discover-Muon", "#C0143C", "muon", _MUON),
        _clustered("paper_discover", _PAPER, "Discover (printed)", "#8A3D00", "momentum", _PRINTED),
        _clustered("paper_discover_qhm", _PAPER, "Discover-QHM (printed)", "#6B2D59", "qhm", _PRINTED | {"nu": _NUS}),
        _clustered("paper_discover_igt", _PAPER, "Discover-IGT (printed)", "#8F6300", "igt", _PRINTED | _TAIL),
    ),
    from_path=_own,
)
"""Every optimizer of the library, in the order of tables and figures."""

REFERENCE = "momentum"
"""What the others are measured against, on the same batches and on shuffled ones."""
