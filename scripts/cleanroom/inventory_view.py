"""An inventory as tables for people: where the architecture is decided, what is sensitive to it, what needs a decision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import get_args

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cleanroom.console import Console
from cleanroom.evidence import Severity
from cleanroom.inventory import ComponentInventory, Family, Inventory, Occurrence, to_json
from cleanroom.sensitivity import Kind

OF_INTEREST = ("sm_89", "sm_90a", "sm_100a", "sm_103a", "sm_110a", "sm_120a", "sm_121a")
"""The forms that get a column: the most specific form of each capability that a report speaks about."""

PLACES = 3
"""Lines that are shown of one fact in one file; --json has all."""

WIDEST = 46
"""Columns for what was found."""

_COLOURS: dict[Severity, str] = {"fails": "bold red", "degrades": "bold yellow", "note": "bold"}
UNTOLD = "?: kernels that TileLang writes when they run; which architectures accept them, a build tells (envs/jit/)."
COUNTED = (
    "Counts are of text, code that a preprocessor condition leaves out included. Nothing was built.\n"
    "Below: what was found, how often, the architectures that accept it or for which it holds, and where."
)


def show(inventory: Inventory, console: Console) -> None:
    """Show an inventory to people; with --json, all of it as one object."""
    if console.json:
        console.result(to_json(inventory))
        return
    for part in render(inventory):
        console.show(part)


def render(inventory: Inventory) -> Iterator[RenderableType]:
    """The parts from top to bottom: the overview, each component's places, and what a person has to decide."""
    yield Text.assemble((f"{inventory.target.title}: ", "bold"), f"what depends on the architecture, lock {inventory.lock.name}")
    yield Text()
    yield _overview(inventory.components)
    yield Text()
    if (accepted := _acceptance(inventory.components)).row_count:
        yield accepted
        if not all(map(_told, inventory.components)):
            yield Text(UNTOLD)
    yield Text(COUNTED, style="dim")
    for component in inventory.components:
        yield Text()
        yield Text.assemble((component.title, "bold"), f" {component.version}: {_decided(component)}")
        yield _places(component)
        if component.families:
            yield _families(component.families)
    yield Text()
    yield from _problems(inventory)
    if inventory.unread:
        names = ", ".join(inventory.unread)
        yield Text(f"Not in the store, so that only their names say what they provide: {names}")


_DECIDED = {"build": "when it is built, by {}", "run-time": "at run time, by {}", "nowhere": "nowhere ({})"}


def _decided(component: ComponentInventory) -> str:
    asked = f"; asked for {', '.join(component.asked)}" if component.asked else ""
    return f"architecture decided {_DECIDED[component.decided].format(component.decided_by)}{asked}"


def _plain_table(*headings: str, right: Iterable[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return table


def _overview(components: Iterable[ComponentInventory]) -> Table:
    """How many places of each kind."""
    kinds: tuple[Kind, ...] = get_args(Kind)
    headings = ("files", *kinds, "kernel family")
    table = _plain_table("component", *headings, right=headings)
    for component in components:
        counts = Counter(f.kind for f in component.occurrences)
        families = sum(f.status != "gone" for f in component.families)
        numbers = (component.files, *(counts[kind] for kind in kinds), families)
        table.add_row(component.name, *(str(n) if n else "-" for n in numbers))
    return table


def _acceptance(components: Iterable[ComponentInventory]) -> Table:
    """How many of a component's instructions, and of its kernel families, each architecture accepts."""
    table = _plain_table("accepted", "of", *OF_INTEREST, right=("of", *OF_INTEREST))
    for component in components:
        if component.instructions:
            accepted = (str(component.accepted.get(form, 0)) for form in OF_INTEREST)
            table.add_row(f"{component.name} instructions", str(component.instructions), *accepted)
        families = [f for f in component.families if f.status == "known" and f.vendor == "nvidia"]
        if families:
            possible = (str(sum(form in f.architectures for f in families)) if _told(component) else "?" for form in OF_INTEREST)
            table.add_row(f"{component.name} kernel families", str(len(families)), *possible)
    return table


def _told(component: ComponentInventory) -> bool:
    """Whether the text of its kernels says anything about architectures; what TileLang makes of its own says nothing."""
    return bool(component.instructions) or any(set(OF_INTEREST) - set(f.architectures) for f in component.families)


def _places(component: ComponentInventory) -> Table:
    """Each fact with how often it occurs, what it holds for and where, under its kind."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, max_width=WIDEST, overflow="ellipsis")
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    kinds: tuple[Kind, ...] = get_args(Kind)
    for kind in kinds:
        occurrences = sorted(component.of(kind), key=lambda f: (_what(f), f.architectures))
        if occurrences:
            table.add_row(Text(f"{kind}s" if kind[-1].islower() else kind, style="underline"), str(len(occurrences)))
        for (what, forms), group in groupby(occurrences, key=lambda f: (_what(f), f.architectures)):
            found = list(group)
            table.add_row(f"  {what}", str(len(found)), _forms(forms), _names(found) if kind == "variable" else _where(found))
    return table


def _what(occurrence: Occurrence) -> str:
    """What several occurrences have in common: a flag itself, what a variable decides, else the fact's name."""
    if occurrence.kind == "build flag":
        return occurrence.text
    return occurrence.note if occurrence.kind == "variable" else occurrence.name or occurrence.text


def _names(occurrences: Iterable[Occurrence]) -> str:
    """Variables, each with the place where it is first read."""
    first = {f.text: f for f in reversed(list(occurrences))}
    return ", ".join(f"{name} ({_short(f.file)}:{f.line})" for name, f in sorted(first.items()))


def _short(path: str) -> str:
    """A path as its file name, where it is in a folder."""
    return f"…/{path.rsplit('/', 1)[1]}" if "/" in path else path


def _forms(architectures: tuple[str, ...]) -> str:
    """Forms in short: all of a few, else what is accepted from some capability on, else those of interest."""
    if len(architectures) <= PLACES:
        return " ".join(form.removeprefix("sm_") for form in architectures)
    shown = [form for form in OF_INTEREST if form in architectures]
    portable = [form for form in architectures if form[-1].isdigit()]
    if portable and shown and shown == list(OF_INTEREST[OF_INTEREST.index(shown[0]) :]):
        return f"{portable[0]} and later"
    return " ".join(form.removeprefix("sm_") for form in shown)


def _where(occurrences: Iterable[Occurrence]) -> str:
    """The file with most of them and its first lines, and how many are elsewhere."""
    files: dict[str, list[int]] = {}
    for occurrence in occurrences:
        files.setdefault(occurrence.file, []).append(occurrence.line)
    first, *others = sorted(files.items(), key=lambda item: (-len(item[1]), item[0]))
    lines = ", ".join(map(str, first[1][:PLACES]))
    more = len(first[1]) - PLACES
    text = f"{_short(first[0])}:{lines}" + (f" and {more} more" if more > 0 else "")
    if others:
        count = sum(len(lines) for _, lines in others)
        text += f"; {count} in {len(others)} other file{'s' if len(others) > 1 else ''}"
    return text


def _families(families: Iterable[Family]) -> Text:
    """The families by what they can be compiled for."""
    lines = Text()
    ordered = sorted(families, key=lambda f: (f.compiled, f.architectures, f.name))
    for (compiled, forms), group in groupby(ordered, key=lambda f: (f.compiled, f.architectures)):
        members = [f.name if f.status == "known" else f"{f.name} ({f.status})" for f in group]
        needs = f" for {_forms(forms)}" if forms else ""
        when = "when built" if compiled == "build" else "at run time"
        count = f"{len(members)} kernel {'family' if len(members) == 1 else 'families'}"
        lines.append(f"{count} compiled {when}{needs}: ", style="bold")
        lines.append(", ".join(members) + "\n")
    lines.rstrip()
    return lines


def _problems(inventory: Inventory) -> Iterator[Text]:
    if not inventory.problems:
        yield Text("Nothing to decide: every kernel family and instruction is described, every imported module is provided.")
        return
    yield Text("To decide", style="bold")
    severities: tuple[Severity, ...] = get_args(Severity)
    for problem in sorted(inventory.problems, key=lambda p: severities.index(p.severity)):
        yield Text.assemble("  ", (problem.severity, _COLOURS[problem.severity]), f" {problem.component}: {problem.message}")
