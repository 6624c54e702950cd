"""`python -m discover reproduce gains`: the gain that `diagnose` expects, against the one that our results show.

A setting is a way to draw batches of a data set for a network. Wherever the records of a folder have an optimizer with
clusters and its own baseline in the same setting, the two are compared. The *measured gain* is the ratio of their odds
to be right, a/(1 − a) of the test accuracies a; of text, the ratio of the likelihoods of a byte, exp(loss' − loss). It
is above 1 where the clusters help, as the expected one is, though in other units: what is compared is their order.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.diagnosis.figures import write_gains_figure
from benchmarks.diagnosis.outlook import Outlook
from benchmarks.diagnosis.validate import rank_correlation
from discover.lab.experiments.config.config import Config
from discover.lab.experiments.diagnose.gradient_sample import DiagnosisOptions
from discover.lab.experiments.reproduce.results import get_result
from discover.lab.experiments.run.build import build_clustering, build_data
from discover.lab.records import RecordsError, read_json, write_json
from discover.registry import OPTIMIZERS

FAMILIES: Mapping[str, str] = {
    name: OPTIMIZERS[name].baseline or "" for name in ("discover", "discover_adam", "discover_muon")
}
"""Each optimizer that is judged, and its own baseline."""
OTHERS = ("results-e", "results-f")
"""Results that try several values of β and ν, or the printed equations."""
GAINS = "gains.json"


def run(out: Path, *, data: str | None = None, quick: bool = False, say: Callable[[str], None] = print) -> None:
    """Compares both gains in every setting of the results beside `out`."""
    if not gains(out.parent, data=data, scale="digits" if quick else "small", say=say)["rows"]:
        told = f"no result in {out.parent} has an optimizer with clusters beside its baseline"
        raise RecordsError(f"{told}: run `discover reproduce results-d`, for instance, first")


def draw(out: Path) -> list[Path]:
    """The figure of the record in `out`; none where there is none."""
    record = read_json(out / GAINS) if (out / GAINS).is_file() else {}
    return write_gains_figure(record, out) if record.get("rows") else []


def gains(
    folder: Path,
    *,
    data: str | None = None,
    scale: str = "small",
    options: DiagnosisOptions | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Compares both gains in every setting of the records below ``folder``, and writes `gains/gains.json` there.

    What was expected in an earlier call is not measured again.
    """
    path = folder / "gains" / GAINS
    path.parent.mkdir(parents=True, exist_ok=True)
    known = read_json(path)["expected"] if path.is_file() else {}
    trained = _trained(folder, data, scale)
    facts = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    record: dict[str, Any] = {**facts, "rows": [], "expected": known}
    for key, expectation in _expected(trained, known, options):
        record["expected"][key] = expectation
        write_json(path, record)
    for key, (config, rows) in trained.items():
        for ours, plain in FAMILIES.items():
            if rows.get(ours) and rows.get(plain):
                best, base = (max(rows[name], key=_validation) for name in (ours, plain))
                row = {**_about(config), "optimizer": ours, "label": best["label"], "baseline": base["label"]}
                row |= {"predicted": known[key]["predicted"], **_measured(best, base)}
                record["rows"].append(row)
                where = f"{row['data']}, {row['clusters']}, {row['groups']} groups, {row['composition']}"
                say(f"{where}: {ours} expected {row['predicted']:.2f}, measured {row['measured']:.2f}")
    if len(record["rows"]) > 1:
        record |= rank_correlation(record["rows"])
    record["families"] = {
        name: {"settings": len(own), **(rank_correlation(own) if len(own) > 1 else {}), **_pairs_in_order(own)}
        for name in FAMILIES
        if (own := [row for row in record["rows"] if row["optimizer"] == name])
    }
    write_json(path, record)
    return record


def _pairs_in_order(rows: list[dict[str, Any]]) -> dict[str, int]:
    """Of the pairs of settings that differ by the number of groups alone: how many came in the expected order."""
    rest = ("data", "clusters", "composition", "label_noise", "model")
    pairs = [(a, b) for a, b in combinations(rows, 2) if all(a[name] == b[name] for name in rest)]
    right = [(a["predicted"] - b["predicted"]) * (a["measured"] - b["measured"]) > 0 for a, b in pairs]
    return {"pairs": len(pairs), "pairs_in_order": sum(right)}


Trained = dict[str, tuple[Config, dict[str, list[dict[str, Any]]]]]
"""By setting: its configuration, and the rows of the records by optimizer."""


def _trained(folder: Path, data: str | None, scale: str) -> Trained:
    found: Trained = {}
    for path in sorted(folder.glob("results-*/*/comparison.json")):
        record = read_json(path)
        if record["result"] in OTHERS:
            continue
        result = get_result(
            f"{record['result']}/{record['panel']}", scale, data=data, overrides=record.get("overrides", ())
        )
        configs = {row.label: row.config for row in result.panels[0].rows}
        for row in record["rows"]:
            config = configs.get(row["label"])
            mean = row[f"test_{row.get('measure', 'accuracy')}"]["mean"]
            if config is None or mean is None or config.batches.composition == "shuffled":
                continue
            _, rows = found.setdefault(_setting(config), (config, {}))
            rows.setdefault(row["optimizer"], []).append(row)
    return found


def _setting(config: Config) -> str:
    """Everything but the optimizer, as a key."""
    tree = config.with_values({"data.path": None, "training.seeds": [0], "training.track_variance": 0}).to_dict()
    return json.dumps({name: tree[name] for name in sorted(tree) if name not in ("name", "optimizer")})


def _expected(
    trained: Trained, known: Mapping[str, Any], options: DiagnosisOptions | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What is expected in each setting where it is not known, one network and data set after the other."""
    waiting: dict[str, list[str]] = {}
    for key, (config, rows) in trained.items():
        if key not in known and any(rows.get(ours) and rows.get(plain) for ours, plain in FAMILIES.items()):
            data, model = config.to_dict()["data"], config.to_dict()["model"]
            batch = config.batches.groups * config.batches.group_size
            waiting.setdefault(json.dumps([data, model, batch], sort_keys=True), []).append(key)
    for keys in waiting.values():
        dataset = build_data(trained[keys[0]][0])
        outlook = Outlook(trained[keys[0]][0], dataset, options)
        for key in keys:
            config = trained[key][0]
            yield key, outlook.predict(build_clustering(config, dataset, outlook.work.noise), config)


def _about(config: Config) -> dict[str, Any]:
    path = config.data.path
    return {
        "data": Path(path).name.partition(".")[0] if path else config.data.source,
        "clusters": config.clusters.values_of or config.clusters.by,
        "groups": config.batches.groups,
        "composition": config.batches.composition,
        "label_noise": config.data.label_noise,
        "model": "-".join(
            [config.model.name, *(str(v) for v in config.model.arguments.values() if isinstance(v, int))]
        ),
    }


def _validation(row: Mapping[str, Any]) -> float:
    """How good a row is on the validation split; a printed one has its test value only."""
    measure = row.get("measure", "accuracy")
    found = row.get(f"validation_{measure}") or row[f"test_{measure}"]
    return (1 if measure == "accuracy" else -1) * found["mean"]


def _measured(ours: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, float]:
    """The gain, with an interval of two standard errors over the seeds."""
    (mean, error), (base, base_error) = (_log_odds(row) for row in (ours, plain))
    gain, spread = mean - base, 1.96 * math.hypot(error, base_error)
    return {
        "measured": math.exp(gain),
        "measured_low": math.exp(gain - spread),
        "measured_high": math.exp(gain + spread),
    }


def _log_odds(row: Mapping[str, Any]) -> tuple[float, float]:
    """The mean over the seeds and its standard error."""
    found = row["test_loss"] if row.get("measure") == "loss" else row["test_accuracy"]
    values = np.asarray(found.get("values") or [found["mean"]], float)
    if row.get("measure") == "loss":
        values = -values
    else:
        values = np.clip(values, 1e-4, 1 - 1e-4)
        values = np.log(values / (1 - values))
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0
    return float(np.mean(values)), error
