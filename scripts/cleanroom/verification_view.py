"""What a release engineer reads after `verify`: how much two clean builds have in common, and what the rest is due to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cleanroom.console import Console, human_seconds
from cleanroom.record import File, Image, Level
from cleanroom.summary import _shown as shown
from cleanroom.verification import LEVELS, Difference, Verification, reaches

SAYS: Mapping[Level, str] = {
    "identical image": "Two clean builds gave the same image, bit for bit",
    "identical artifacts": "Two clean builds gave the same wheels, bit for bit",
    "identical after named normalisations": "Two clean builds gave the same wheels but for what is named, which no program runs",
    "identical device code": "Two clean builds gave the same machine code for the GPU; other parts may differ",
    "same architectures": "Two clean builds gave machine code for the same architectures; the code may differ",
    "builds": "Every component compiled in a clean container, and every module that was tried imports without a GPU",
    "incomplete": "Nothing failed, but not everything was attempted, or a part of the engine has no source here",
    "fails": "A component did not build, a module does not import, or the result is not what was asked for",
}
"""What each level says, in the words that every summary and report uses."""

ONLY_BYTES = "The level is about bytes. It proves nothing about results or speed: no kernel was started."

SHOWN_CAUSES = 5
"""Causes in the terminal; the report has all."""


@dataclass(frozen=True)
class Cause:
    """Differences of one component that have one cause, and so one remedy."""

    cause: str
    remedy: str
    level: Level
    differences: tuple[Difference, ...]

    @property
    def title(self) -> str:
        return "unknown cause" if self.cause == "unknown" else self.cause


def by_cause(differences: Iterable[Difference]) -> tuple[Cause, ...]:
    """Differences by cause, those that cost most first."""

    def key(difference: Difference) -> tuple[int, str, str]:
        return (-LEVELS.index(difference.level), difference.cause, difference.remedy)

    groups = (tuple(group) for _, group in groupby(sorted(differences, key=key), key))
    return tuple(Cause(g[0].cause, g[0].remedy, g[0].level, g) for g in groups)


def place_of(difference: Difference) -> str:
    """Where a difference is, as one reads it: file, part, or both."""
    return ", ".join(filter(None, (difference.file, difference.part))) or "the archive itself"


def summarise(verification: Verification, console: Console, *, out: Path) -> None:
    """Show a verification to people; with --json, say the levels and where it is. `out`: the target's output folder."""
    if console.json:
        components = {c.name: c.level for c in verification.components}
        image = verification.image_level if verification.image_second else None
        report = str(out / "report.html")
        place = str(out / "verify" / "verification.json")
        console.result(
            {"level": verification.level, "components": components, "image": image, "verification": place, "report": report}
        )
        return
    for part in render(verification, out):
        console.show(part)


def render(verification: Verification, out: Path) -> Iterator[RenderableType]:
    """The parts of a summary from top to bottom."""
    yield Text()
    yield _headline(verification)
    yield Text(f"{SAYS[verification.level]}. Second build and comparison: {human_seconds(verification.seconds)}.")
    yield Text()
    yield _table(verification)
    yield from _differences(verification)
    changed = [f"{v.condition} ({v.value}): {v.level}" for v in verification.variations]
    for title, names in (
        ("Different on purpose", [c.name for c in verification.conditions]),
        ("Varied one at a time", changed),
    ):
        if names:
            yield Text()
            yield Text.assemble((f"{title}: ", "bold"), ", ".join(names))
    yield Text()
    yield Text(ONLY_BYTES)
    yield Text.assemble(("Report: ", "bold"), shown(out / "report.html"))


def _headline(verification: Verification) -> Text:
    target = verification.target
    name = target.name if target.status == "supported" else f"{target.name} ({target.status})"
    return Text.assemble((f"{name} on {verification.base}: ", "bold"), (verification.level, _colour(verification.level)))


def _colour(level: Level) -> str:
    if reaches(level, "identical artifacts"):
        return "bold green"
    return "bold red" if level == "fails" else "bold yellow"


def _table(verification: Verification) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("component", "level", "first build", "second build"):
        table.add_column(heading, no_wrap=True)
    for c in verification.components:
        table.add_row(c.name, Text(c.level, style=_colour(c.level)), *_pair(_digest(c.first), _digest(c.second)))
    if verification.image_second:
        level = verification.image_level
        pair = _pair(_digest(verification.image_first), _digest(verification.image_second))
        table.add_row("image", Text(level, style=_colour(level)), *pair)
    return table


def _pair(first: str, second: str) -> tuple[str, str]:
    return first, "the same" if first == second != "-" else second


def _digest(output: File | Image | None) -> str:
    """The first twelve digits: enough to compare by eye, the rest is in the report."""
    if output is None:
        return "-"
    return (output.sha256 if isinstance(output, File) else output.manifest.removeprefix("sha256:"))[:12]


def _differences(verification: Verification) -> Iterator[Text]:
    compared = [(c.name, c.differences) for c in verification.components] + [("image", verification.image_differences)]
    causes = [(name, cause) for name, differences in compared for cause in by_cause(differences)]
    causes.sort(key=lambda each: -LEVELS.index(each[1].level))
    if causes:
        yield Text()
        yield Text("Differences", style="bold")
    for name, cause in causes[:SHOWN_CAUSES]:
        more = f" and {len(cause.differences) - 1} more" if len(cause.differences) > 1 else ""
        yield Text.assemble(f"  - {name}: ", (cause.title, _colour(cause.level)), f" ({cause.level})")
        yield Text(f"    in {place_of(cause.differences[0])}{more}")
        if cause.remedy:
            yield Text(f"    remedy: {cause.remedy}")
    if len(causes) > SHOWN_CAUSES:
        yield Text(f"  {len(causes) - SHOWN_CAUSES} more causes are in the report.")
