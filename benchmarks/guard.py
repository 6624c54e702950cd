"""A guard against slow steps: measures CPU ratios to momentum and compares them with the recorded ones.

    python benchmarks/guard.py             compare; exit code 1 when a ratio has fallen
    python benchmarks/guard.py --record    write the ratios of this machine as the new record

CPU seconds of the process count, not wall time, so that other work on the machine matters less. A ratio may fall short
of its record by the stated noise before it counts as a loss. The update alone, a small part of a step, is compared too:
how often Discover's goes into the time of momentum's, as wall time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from statistics import median

from discover.lab.experiments.bench.candidates import LONGEST_DISPATCH, adjusted, prepare_candidate, random_images
from discover.lab.experiments.bench.update import time_update
from discover.lab.experiments.presets.presets import get_preset

RECORD = Path(__file__).with_name("guard.json")
NOISE = 0.05  # between runs on a busy two-core machine we saw up to 0.03
UPDATE = "update alone, G = 8"
UPDATE_NOISE = 0.5  # of the record; a sum over the groups that XLA does not vectorise costs more than that
SETTING = ["model.name=cnn", "model.width=none", "batches.groups=8", "batches.group_size=32"]
CANDIDATES = (("momentum", 8), ("discover", 8), ("discover", 2), ("discover_igt", 8), ("igt", 8), ("adam", 8))
REPEATS = 60


def measure() -> dict[str, float]:
    """Each candidate's steps per CPU second, relative to momentum's in the same repeat."""
    preset = get_preset("digits")
    base = preset.config_for("momentum").override(SETTING)
    batch, steps = base.batches.groups * base.batches.group_size, base.training.steps_per_dispatch
    dataset = random_images(base, 10)
    candidates = [
        prepare_candidate(
            adjusted(preset.config_for(name).override(SETTING), batch, groups, None),
            dataset,
            min(steps, LONGEST_DISPATCH),
        )
        for name, groups in CANDIDATES
    ]
    for candidate in candidates:
        candidate.run()  # the first is slower
    for _ in range(REPEATS):
        for candidate in candidates:
            began = time.process_time()
            candidate.run()
            candidate.seconds.append(time.process_time() - began)
    baseline = candidates[0].seconds

    def update(name: str) -> float:
        config = adjusted(preset.config_for(name).override(SETTING), batch, 8, None)
        return time_update(config, dataset, 1.0, REPEATS)["milliseconds"]

    ratios = {
        f"{candidate.optimizer}, G = {candidate.groups}": round(
            median(ours / own for ours, own in zip(baseline, candidate.seconds)), 3
        )
        for candidate in candidates[1:]
    }
    return ratios | {UPDATE: round(update("momentum") / update("discover"), 3)}


def main() -> int:
    """Measures, then compares or records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the record instead of comparing with it")
    arguments = parser.parse_args()
    ratios = measure()
    if arguments.record:
        RECORD.write_text(json.dumps(ratios, indent=2) + "\n", encoding="utf-8")
        print(f"recorded {len(ratios)} ratios in {RECORD.name}")
        return 0
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    least = {name: (1 - UPDATE_NOISE) * r if name == UPDATE else r - NOISE for name, r in recorded.items()}
    fallen = [name for name, ratio in ratios.items() if ratio < least[name]]
    for name, ratio in ratios.items():
        print(f"{name:22} {ratio:.3f}  recorded {recorded[name]:.3f}{'   SLOWER' if name in fallen else ''}")
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
