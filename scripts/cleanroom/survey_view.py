"""A survey for people: counts first, then each reason once, the most frequent first."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cleanroom.survey import Survey


def headline(survey: Survey) -> str:
    """One line: how many units, and what became of them."""
    if not survey.units:
        return f"{survey.component}: no translation unit was attempted"
    found = ", ".join(f"{count} {outcome}" for outcome, count in survey.counts.items() if count)
    return f"{survey.component}: {len(survey.units)} translation units, {found}"


def render(survey: Survey) -> Iterator[RenderableType]:
    """The parts from top to bottom."""
    yield Text(headline(survey), style="bold")
    if not survey.causes:
        return
    table = Table("units", "refused by", "what it said", "first met in", box=None, pad_edge=False)
    for cause in survey.causes:
        table.add_row(str(cause.count), cause.gate, Text(cause.failure.message), Text(cause.failure.where or cause.first))
    yield table
