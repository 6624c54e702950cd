r"""From measured variances to advice: will this clustering help, what does it cost, which β and ν to start from.

The prediction. With noise V in a batch's gradient and signal ‖g‖², a step of the best length makes progress in
proportion to ‖g‖⁴/(‖g‖² + V), so at fixed parameters the steps needed grow like 1 + V/‖g‖². The *expected gain* is by
how much Discover lowers that, against one momentum for all clusters with the same β and ν (which is QHM):

$$\frac{1 + V_{one}/‖g‖²}{1 + V_{Discover}/‖g‖²}$$
$$V_{one} = \frac{V_{in}}{|B|} + \frac{V_{bet}}{G}$$
$$V_{Discover} = \frac{V_{in}}{|B|}\Big(1 + \big(1 − Σ p_n²\big)\frac{ρ}{2 − ρ}\Big) + φ\frac{V_{bet}}{G}$$

φ = 1/2 is what stale buffers leave of the noise between clusters: the best learning rate is a fast one, at which the
clusters' gradients change while a buffer waits. It was measured along runs on digits (`docs/notes/advice.md`). So the
gain stays below 1/φ, and depends little on G where nearly all noise is between clusters.

The factor after $V_{in}/|B|$ is the noise that the buffers themselves keep when each visit moves them by ρ: what
Discover pays even where there is nothing between clusters to remove. A step contains it as $buffer_n − \bar g$, which
takes away the part Σ p_n² that is common to both. The factor is for clusters of equal probability and a stationary
problem (a simulation agrees for ν = 0). $V_{one}$ is for clusters drawn independently; for other batches the noise is
measured (`composed_batch_noise`), that of momentum's average: clusters that take turns leave less of it than of a
single batch's.

The setting. β = ν = 0.95, which was best or within the seeds' spread of the best wherever we measured
(docs/choosing.md, docs/muon.md). A visit then moves a buffer by ρ = 0.05·N/G.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from discover.lab.diagnostics.batches import BatchNoise, NoiseEstimate, estimated_batch_noise
from discover.lab.diagnostics.variance import Estimate

__all__ = ["Advice", "Candidate", "Setting", "advise", "expected_gain", "recommend"]

BETA = NU = 0.95
STALE = 0.5
"""φ: the share of the noise between clusters that Discover leaves at its best learning rate."""
HELPS, DEPENDS = 1.5, 1.2
"""Expected gains from which the advice says "use it" and "try it"."""


@dataclass(frozen=True)
class Setting:
    """Where to start: β and ν of `discover`, and how far a visit moves a buffer of average probability."""

    beta: float
    nu: float
    visit_rate: float


def recommend(num_clusters: int, num_groups: int) -> Setting:
    """β and ν to start from, for G groups per batch drawn from N clusters.

    Example:
      >>> recommend(10, 2)
      Setting(beta=0.95, nu=0.95, visit_rate=0.25)
    """
    if num_clusters < 1 or num_groups < 1:
        raise ValueError(f"num_clusters and num_groups must be at least 1, got {num_clusters} and {num_groups}")
    return Setting(BETA, NU, round(min(1.0, (1 - BETA) * num_clusters / num_groups), 4))


def expected_gain(estimate: Estimate, noise: BatchNoise, visit_rate: float, square_sum: float = 0.0) -> float:
    """How many times fewer steps than with one momentum for all clusters to expect; see the top of this file.

    Args:
      estimate: of the clustering at some parameters.
      noise: of the batches as drawn, see `batch_noise`.
      visit_rate: ρ.
      square_sum: Σ p_n², 1/N for N equal clusters; 0 stands for very many.

    Returns:
      Above 1 where there is something to remove, below where the buffers' own noise is all that is added.
    """
    signal = max(estimate.mean_square.value, 1e-12 * max(estimate.total.value, 1e-30))
    own = 1.0 + (1.0 - square_sum) * visit_rate / (2.0 - visit_rate)
    left = own * noise.in_cluster + STALE * noise.between_cluster
    return (1.0 + noise.total / signal) / (1.0 + left / signal)


@dataclass(frozen=True)
class Candidate:
    """A clustering to be judged.

    Attributes:
      name: as the table shows it.
      num_clusters: N.
      estimates: by stage ("start", "warm-up"), in order; the last one decides.
      probs: the clusters' probabilities; equal ones if None.
      noises: by stage the noise of batches that draw their clusters otherwise than independently, see
        `composed_batch_noise`; None for independent ones, which have a formula.
      averaged: by stage the noise that momentum leaves of them; None where it is that of a batch.
    """

    name: str
    num_clusters: int
    estimates: Mapping[str, Estimate]
    probs: Sequence[float] | None = None
    noises: Mapping[str, NoiseEstimate] | None = None
    averaged: Mapping[str, BatchNoise] | None = None


@dataclass(frozen=True)
class Advice:
    """What the numbers say about one clustering.

    Attributes:
      name: of the clustering.
      num_clusters: N.
      variance_share: the part of one example's gradient variance that lies between clusters.
      batch_share: the part of a batch's noise between clusters, batches of G cluster-pure groups.
      shuffled_share: the same for shuffled batches of the same size.
      gain: expected; see `expected_gain`.
      setting: where to start.
      memory_bytes: of the buffers and their mean.
      stages: by stage the estimates behind it with their intervals, JSON-able.
      verdict: "use", "try" or "leave".
      text: one sentence.
    """

    name: str
    num_clusters: int
    variance_share: float
    batch_share: float
    shuffled_share: float
    gain: float
    setting: Setting
    memory_bytes: int
    stages: Mapping[str, Any]
    verdict: str
    text: str

    def to_json(self) -> dict[str, Any]:
        """As plain numbers, strings and dictionaries."""
        return asdict(self)


def advise(
    candidates: Sequence[Candidate],
    *,
    num_groups: int,
    group_size: int,
    num_parameters: int,
    bytes_per_value: int = 4,
) -> list[Advice]:
    """Ranks clusterings by what Discover can remove, for batches of G cluster-pure groups of b examples.

    Args:
      candidates: the clusterings, with their estimates.
      num_groups: G.
      group_size: b.
      num_parameters: of the model, for the memory.
      bytes_per_value: of a buffer; 2 for bfloat16, 1 for int8.

    Returns:
      One `Advice` per candidate, the largest share between clusters first; of equal ones the fewer clusters.
    """
    rows = [_judge(candidate, num_groups, group_size, num_parameters, bytes_per_value) for candidate in candidates]
    return sorted(rows, key=lambda row: (-round(row.batch_share, 3), row.num_clusters))


def _judge(candidate: Candidate, groups: int, size: int, parameters: int, width: int) -> Advice:
    if not candidate.estimates:
        raise ValueError(f"clustering {candidate.name!r} has no estimate")
    setting = recommend(candidate.num_clusters, groups)
    probs = candidate.probs if candidate.probs is not None else [1 / candidate.num_clusters] * candidate.num_clusters
    square_sum = float(sum(p * p for p in probs))
    stages = {}
    for stage, estimate in candidate.estimates.items():
        pure = estimated_batch_noise(estimate, num_groups=groups, group_size=size)
        if candidate.noises is not None:
            pure = candidate.noises[stage]
        left = pure.noise if candidate.averaged is None else candidate.averaged[stage]
        mixed = estimated_batch_noise(estimate, num_groups=groups, group_size=size, composition="shuffled")
        stages[stage] = {
            **{name: asdict(getattr(estimate, name)) for name in ("in_cluster", "between_cluster", "mean_square")},
            "variance_share": estimate.between_share,
            "batch_share": pure.between_share.value,
            "batch_noise": pure.noise.total,
            "batch": asdict(pure),
            "shuffled_share": mixed.between_share.value,
            "shuffled_noise": mixed.noise.total,
            "shuffled": asdict(mixed),
            "gain": expected_gain(estimate, left, setting.visit_rate, square_sum),
        }
    last = stages[next(reversed(stages))]
    verdict = "use" if last["gain"] >= HELPS else "try" if last["gain"] >= DEPENDS else "leave"
    return Advice(
        name=candidate.name,
        num_clusters=candidate.num_clusters,
        variance_share=last["variance_share"],
        batch_share=last["batch_share"],
        shuffled_share=last["shuffled_share"],
        gain=last["gain"],
        setting=setting,
        memory_bytes=(candidate.num_clusters * width + 4) * parameters,  # the mean is float32 whatever the buffers
        stages=stages,
        verdict=verdict,
        text=_sentence(candidate, groups, last, setting, verdict),
    )


def _sentence(candidate: Candidate, groups: int, row: Mapping[str, float], setting: Setting, verdict: str) -> str:
    group_words = "1 group" if groups == 1 else f"{groups} groups"
    share = (
        f"{candidate.name}: with {group_words} per batch, {row['batch_share']:.0%} of the gradient noise is between "
        f"clusters; with shuffled batches {row['shuffled_share']:.0%}."
    )
    start = f" Start from beta={setting.beta:g}, nu={setting.nu:g}."
    if verdict == "use":
        fewer = f"expect about {row['gain']:.1f} times fewer steps than with one momentum for all"
        return f"{share} Discover can remove about half of it: {fewer}.{start}"
    if verdict == "try":
        return f"{share} Discover may help a little (expected gain {row['gain']:.2f}).{start}"
    little = "There is little for Discover to remove" if row["batch_share"] < 0.2 else "Removing that would gain little"
    return f"{share} {little} (expected gain {row['gain']:.2f}): Momentum is fine."
