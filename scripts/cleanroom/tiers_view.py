"""What a person reads after the tiers of a target: what each showed, what it did not, and what was not reached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cleanroom.console import Console, human_seconds
from cleanroom.tiers import FILE, Tiers

_COLOURS = {"passed": "green", "partly": "yellow", "failed": "bold red", "not run": ""}


def show(result: Tiers, console: Console, *, out: Path) -> None:
    """Show them to people; with --json, the outcome of each. `out`: the target's output folder."""
    if console.json:
        console.result({"tiers": {t.name: t.outcome for t in result.tiers}, "file": str(out / FILE)})
        return
    for part in render(result, out):
        console.show(part)


def render(result: Tiers, out: Path) -> Iterator[RenderableType]:
    """The parts from top to bottom."""
    yield Text()
    yield Text(f"{result.target}: tiers of evidence, run in containers of {result.ran_on}", style="bold")
    yield Text("None of them is a build of the target.")
    table = Table("tier", "outcome", "platform", "time", "figures", box=None, pad_edge=False)
    for tier in result.tiers:
        figures = ", ".join(f"{name}: {value}" for name, value in tier.figures.items())
        outcome = Text(tier.outcome, style=_COLOURS[tier.outcome])
        table.add_row(tier.name, outcome, tier.platform, human_seconds(tier.seconds), figures)
    yield table
    for tier in result.tiers:
        yield Text()
        yield Text(f"{tier.name} ({tier.outcome}) shows that {tier.shows}; it does not show {tier.shows_not}.")
        for failure in tier.failures:
            yield Text(f"  | {failure}")
    yield Text()
    yield Text("Not reached")
    for line in result.not_reached:
        yield Text(f"  - {line}")
    yield Text(f"Written: {out / FILE}")
