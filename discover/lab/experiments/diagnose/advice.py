"""What to do about batches of few clusters, in the order of what it costs: turns, Muon, Discover before Muon."""

from __future__ import annotations

from discover.lab.diagnostics.advisor import Advice

MEASURED = {
    ("momentum", "random"): 19,
    ("momentum", "turns"): 38,
    ("muon", "random"): 53,
    ("muon", "turns"): 82,
    ("damped", "random"): 74,
    ("damped", "turns"): 83,
}
"""Test accuracies of results-h in %, one class a batch of CIFAR-10 (JPEG): what each step brought there."""
ON_TEXT = {"muon": 1.53, "discover_muon": 1.67}
"""Test losses of results-h/text in nats, one of 16 languages a batch: there Discover did harm."""


def what_to_do(row: Advice, groups: int, composition: str, *, next_byte: bool = False) -> list[str]:
    """One line for each step that is worth trying, the cheapest first.

    Args:
        row: of the clustering that is trained with.
        groups: of a batch.
        composition: of the batches.
        next_byte: whether the next byte of text is learned.
    """
    if composition == "shuffled":
        return []
    if row.verdict == "leave":
        return ["Nothing to mend: any optimizer does on these batches what it does on others."]
    lines, random = [], composition == "random" and row.num_clusters > groups
    order = "random" if random else "turns"
    if random:
        lines.append(
            "Let the clusters take turns, if their order is yours to choose: --set batches.composition=balanced. "
            f"{_seen('momentum', 'random', 'momentum', 'turns')} {_seen('muon', 'random', 'muon', 'turns')}"
        )
    lines.append(f"Use Muon: --optimizer muon. {_seen('momentum', order, 'muon', order)}")
    if next_byte:
        lines.append(
            "Stop there, on text: with one of 16 languages a batch Discover before Muon had "
            f"{ON_TEXT['discover_muon']} nats, Muon alone {ON_TEXT['muon']}."
        )
        return lines
    more = "" if random else " In turn Muon alone is as good, unless Discover is damped."
    if random and groups > 2:
        more = " With four classes a batch Muon alone came within 3 points of it there, with eight within 1."
    lines.append(
        f"Put Discover before Muon: --optimizer discover_muon --set optimizer.damping=0.1 (beta={row.setting.beta:g}, "
        f"nu={row.setting.nu:g}). {_seen('muon', order, 'damped', order)}{more}"
    )
    between = row.num_clusters / groups
    if between * (1 - row.setting.beta) > 1:  # by its next visit the rule has forgotten as much as it remembers
        lines.append(
            f"A cluster is seen every {between:.0f} steps only: by then its buffer is out of date, and Discover may "
            "gain nothing. More groups in a batch, or fewer and larger clusters, would help."
        )
    return lines


def _seen(one: str, before: str, other: str, after: str) -> str:
    names = {"momentum": "Momentum", "muon": "Muon", "damped": "Discover before Muon"}
    what = names[one] if one == other else f"{names[one]} to {names[other]}"
    return f"({what}: {MEASURED[one, before]} to {MEASURED[other, after]} % on one class a batch of CIFAR-10 (JPEG).)"
