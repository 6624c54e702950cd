"""The records in `docs/results` and `docs/figures`, and how their contents are written."""

import difflib
import functools
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from discover.registry import OPTIMIZERS

DOCS = Path(__file__).parent.parent
VARIANTS = {"shuffled": "shuffled batches", "balanced": "classes in turn", "random": "classes at random"}


class NoRecord(LookupError):
    """A note names a record or a row that is not there."""


@functools.cache
def load(name: str) -> dict[str, Any]:
    """The record `docs/results/NAME.json`, or the one in `docs/figures`; of a `.jsonl` the lines are the rows."""
    for folder in ("results", "figures"):
        path = DOCS / folder / f"{name}.json"
        if path.exists():
            return json.loads(path.read_text())
        if path.with_suffix(".jsonl").exists():
            return {"rows": [json.loads(line) for line in path.with_suffix(".jsonl").read_text().splitlines()]}
    raise NoRecord(f"there is no docs/results/{name}.json, nor docs/figures/{name}.json")


def find(rows: Iterable[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The one row that has these values."""
    rows, text = list(rows), ", ".join(map(str, wanted.values()))
    names = [", ".join(str(row.get(key)) for key in wanted) for row in rows]
    if names.count(text) != 1:
        near = difflib.get_close_matches(text, names, n=1, cutoff=0)
        raise NoRecord(f"{names.count(text)} rows are {text!r}; near is {', '.join(near)!r}")
    return rows[names.index(text)]


def row(record: str, label: str) -> dict[str, Any]:
    return find(load(record)["rows"], label=label)


def percent(spread: Mapping[str, Any]) -> str:
    """Mean ± standard deviation in percent; of one seed, its value. A printed mean has no values beside it."""
    text = f"{100 * spread['mean']:.1f}"
    return text if len(spread.get("values", ())) == 1 else f"{text} ± {100 * spread['std']:.1f}"


def nats(spread: Mapping[str, Any]) -> str:
    """A loss, mean ± standard deviation; of one seed, its value."""
    text = f"{spread['mean']:.3f}"
    return text if len(spread.get("values", ())) == 1 else f"{text} ± {spread['std']:.3f}"


def name(label: str) -> str:
    """What a row is called.

    >>> name("discover_qhm-mapped"), name("discover-beta=0.95 nu=0.9")
    ('Discover-QHM, mapped', 'Discover, β = 0.95, ν = 0.9')
    """
    optimizer, _, variant = label.partition("-")
    if optimizer not in OPTIMIZERS:
        return label
    title = OPTIMIZERS[optimizer].label
    if "=" in variant:
        variant = variant.replace(" ", ", ").replace("beta1=", "β₁ = ").replace("beta=", "β = ").replace("nu=", "ν = ")
    variant = VARIANTS.get(variant, variant)
    return f"{title}, {variant}" if variant else title


def plain(value: Any) -> str:
    """A number as one would write it: no exponent, no trailing zeros."""
    return f"{value:.10f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)
