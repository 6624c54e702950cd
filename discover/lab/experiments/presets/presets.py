"""The table of presets.

Nothing here imports jax, so that `discover presets` answers at once; the one thing that needs the optimizers (the
paper's pairs (α, α_n) mapped to (β, ν, μ')) is computed when a configuration is asked for.
"""

from __future__ import annotations

from discover.lab.experiments.config.values import ConfigError
from discover.lab.experiments.presets.digits import digits, digits_noise
from discover.lab.experiments.presets.paper import paper_presets
from discover.lab.experiments.presets.preset import Preset
from discover.registry import Table, load_object


def _own(path: str) -> Preset:
    """A user's preset, from the function that returns it."""
    made = load_object("preset", path)
    preset = made() if callable(made) else made
    if not isinstance(preset, Preset):
        raise ConfigError(f"preset {path!r} must return a Preset, got {type(preset).__name__}")
    return preset


PRESETS: Table[Preset] = Table("preset", (digits(), digits_noise(), *paper_presets()), from_path=_own)
"""Every preset, in the order in which they are listed."""


def get_preset(name: str) -> Preset:
    """Returns the preset of that name, or the one that `module:function` returns.

    Example:
        >>> get_preset("digits").hyperparameters("momentum")
        {'learning_rate': 0.1, 'beta': 0.9}
    """
    return PRESETS.find(name)
