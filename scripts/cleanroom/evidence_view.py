"""What a person reads about the machine code in a wheel: architectures, PTX, stubs, and the cards that it runs on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cleanroom.console import Console
from cleanroom.evidence import ComponentEvidence, readable
from cleanroom.strict_json import to_json

SHOWN_STUBS = 8
"""Names of stubs that are listed of one library and architecture; --json has all."""


def show(evidence: ComponentEvidence, console: Console) -> None:
    """Show it to people; with --json, all of it as one object."""
    if console.json:
        console.result(to_json(evidence))
        return
    for part in render(evidence):
        console.show(part)


def render(evidence: ComponentEvidence) -> Iterator[RenderableType]:
    """The parts from top to bottom."""
    yield Text(evidence.name, style="bold")
    if not evidence.libraries:
        yield Text("It holds no machine code for a GPU: its kernels, if it has any, are compiled at run time.")
        return
    table = Table("library", "machine code for", "PTX", "kernels", "stubs", box=None, pad_edge=False)
    for library in evidence.libraries:
        stubs = ", ".join(f"{len(names)} of {architecture}" for architecture, names in sorted(library.stubs.items()) if names)
        kinds = (", ".join(library.architectures), ", ".join(library.ptx))
        table.add_row(library.file, *(kind or "-" for kind in kinds), str(library.kernels), stubs or "-")
    yield table
    for library in evidence.libraries:
        yield from _stubs(library.stubs)
    yield Text()
    yield Text("Runs on (compute capability), as far as machine code says; nothing was run:")
    for capability, answer in evidence.runs_on.items():
        yield Text(f"  {capability:<5} {answer}")


def _stubs(stubs: Mapping[str, Sequence[str]]) -> Iterator[Text]:
    """The names of kernels whose body only traps."""
    for architecture, names in sorted(stubs.items()):
        if names:
            yield Text(f"Stubs for {architecture}: compiled for an architecture that they guard against, they only trap")
            for name in names[:SHOWN_STUBS]:
                yield Text(f"  - {readable(name)}")
            if len(names) > SHOWN_STUBS:
                yield Text(f"  and {len(names) - SHOWN_STUBS} more (--json lists all)")
