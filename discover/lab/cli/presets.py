"""`discover presets`: what can be trained."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from discover.lab.cli import options

if TYPE_CHECKING:
    from discover.lab.experiments.presets.preset import Preset


def presets(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Show this one in full.")] = None,
    json_file: options.JsonOption = None,
) -> None:
    """List the presets, or show one: its configuration, hyperparameters and expected results."""
    from discover.lab.cli.console import show_names
    from discover.lab.experiments.presets.presets import PRESETS, get_preset

    if name is None:
        summaries = {key: preset.summary for key, preset in PRESETS.items()}
        if json_file != "-":
            show_names(summaries.items(), "discover presets NAME shows one in full; discover compare NAME runs it.")
        options.write_result(json_file, summaries)
        return
    preset = get_preset(name)
    values = describe(preset)
    if json_file != "-":
        _show(preset, values)
    options.write_result(json_file, values)


def describe(preset: Preset) -> dict[str, Any]:
    """Everything a preset says, as JSON would have it."""
    return {
        "name": preset.name,
        "summary": preset.summary,
        "source": preset.source,
        "cost": preset.cost,
        "config": {key: value for key, value in preset.config.flat().items() if not key.startswith("optimizer.")},
        "optimizer": {key: value for key, value in preset.config.flat().items() if key.startswith("optimizer.")},
        "optimizers": {optimizer: preset.hyperparameters(optimizer) for optimizer in preset.optimizers},
        "compare": list(preset.compare),
        "learning_rates": list(preset.learning_rates),
        "target_accuracy": preset.target_accuracy,
        "reported": dict(preset.reported),
    }


def _show(preset: Preset, values: dict[str, Any]) -> None:
    from discover.lab.cli.console import stdout
    from discover.lab.experiments.config.keys import argument_keys

    console = stdout()
    console.print(f"[bold cyan]{preset.name}[/bold cyan]  {preset.summary}")
    console.print(f"[dim]source:[/dim] {preset.source}\n[dim]cost:[/dim] {preset.cost or 'not measured'}\n")
    width = max(len(optimizer) for optimizer in values["optimizers"])
    for optimizer, found in values["optimizers"].items():
        reported = values["reported"].get(optimizer)
        note = "" if reported is None else f"  [green](reported: {reported:g} %)[/green]"
        text = "  ".join(
            f"{key}={value:.5g}" if type(value) is float else f"{key}={value}" for key, value in found.items()
        )
        console.print(f"  [bold]{optimizer:<{width}}[/bold]  {text}{note}", soft_wrap=True)
    console.print()
    console.print("[dim]keys for --set:[/dim]")
    differing = {"optimizer.name", *(f"optimizer.{key}" for found in values["optimizers"].values() for key in found)}
    flat = preset.config.flat()
    sections = list(dict.fromkeys(key.partition(".")[0] for key in flat))
    keys = dict.fromkeys((*flat, *argument_keys(preset.config)))
    for key in sorted(keys, key=lambda key: sections.index(key.partition(".")[0])):
        if key in differing:
            console.print(f"  {key}  [dim](by optimizer, above)[/dim]")
        elif key not in flat:
            console.print(f"  {key}  [dim](at its own default, where there is one)[/dim]")
        else:
            value = flat[key]
            text = ",".join(str(v) for v in value) if isinstance(value, tuple) else str(value).lower()
            console.print(f"  {key}={text}", markup=False)
    rates = ", ".join(f"{rate:g}" for rate in preset.learning_rates)
    console.print(f"\n[dim]compare:[/dim] learning rates {rates}; target accuracy {preset.target_accuracy:g}")
