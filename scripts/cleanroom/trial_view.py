"""One page of a trial: who refuses, where, and why; for a terminal, as Markdown and as HTML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cleanroom.console import Console, human_seconds
from cleanroom.files import write_atomically
from cleanroom.report import html_page, markdown_page
from cleanroom.strict_json import to_json
from cleanroom.survey import Cause
from cleanroom.trial import Part, Trial

COLOURS = {"compiles": "bold green", "partly": "bold yellow", "refuses": "bold red", "not tried": "yellow"}
SHOWN_CAUSES = 8
"""Reasons of one component that a terminal shows; the page has all."""
ONLY_TRIED = (
    "An experiment: what compiles was not run, and nothing here makes the architecture supported. "
    "A stub is compiled, and only stops when it is run."
)


def show(trial: Trial, out: Path, console: Console) -> None:
    """Write the pages to `out`, and show the same to people; with --json, all of it as one object."""
    pages = {"trial.md": markdown_page("trial.md.j2", trial=trial, only_tried=ONLY_TRIED)}
    pages["trial.html"] = html_page("trial.html.j2", trial=trial, only_tried=ONLY_TRIED)
    for name, text in pages.items():
        write_atomically(out / name, text.encode())
    if console.json:
        console.result(to_json(trial))
        return
    for part in render(trial):
        console.show(part)
    console.show(Text(f"Also as a page, with the YAML of a target: {' and '.join(str(out / name) for name in pages)}"))


def render(trial: Trial) -> Iterator[RenderableType]:
    """The parts from top to bottom."""
    yield Text()
    yield Text(f"{trial.architecture} over {trial.start}, CUDA {trial.toolkit} ({human_seconds(trial.seconds)})", style="bold")
    table = Table("component", "verdict", "tried here", f"on {trial.start}", box=None, pad_edge=False)
    for part in trial.parts:
        table.add_row(part.title, Text(part.verdict, style=COLOURS[part.verdict]), part.counts, part.reference)
    yield table
    for part in trial.parts:
        if part.causes:
            yield Text()
            yield from causes(part)
    yield Text()
    yield Text(ONLY_TRIED)


def causes(part: Part) -> Iterator[RenderableType]:
    """Why one component is refused: each reason once, the most frequent first."""
    yield Text(f"{part.title}: why", style="bold")
    table = Table("times", "refused by", "what it said", "first met in", box=None, pad_edge=False)
    for cause in part.causes[:SHOWN_CAUSES]:
        table.add_row(str(cause.count), cause.gate, Text(cause.failure.message), Text(place_of(cause)))
    yield table
    if len(part.causes) > SHOWN_CAUSES:
        yield Text(f"  and {len(part.causes) - SHOWN_CAUSES} more reasons")


def place_of(cause: Cause) -> str:
    """File and line where the tool named them, and what was being compiled."""
    where = cause.failure.where
    return where if not cause.first or where.startswith(cause.first) else f"{cause.first} ({where})" if where else cause.first
