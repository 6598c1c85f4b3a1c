"""What a release engineer reads after a build: the verdict, what failed and why, what came out, what nobody checked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cleanroom import survey_view
from cleanroom.console import Console, human_bytes, human_seconds
from cleanroom.record import ComponentResult, Level, Record
from cleanroom.survey import Survey

_COLOURS: dict[Level, str] = {"fails": "bold red", "incomplete": "bold yellow"}
_STATUS_COLOURS = {"failed": "bold red", "not attempted": "yellow", "reused": "green", "built": "green"}

ONLY_COMPILED = "A build proves that the locked inputs compile in a clean container. It proves nothing about results or speed."


def summarise(record: Record, console: Console, *, out: Path, published: str, surveys: Sequence[Survey] = ()) -> None:
    """Show a record to people; with --json, say the verdict and where the record is. `out`: the folder that holds it.

    `published`: how it compares with what is published, as one sentence; `surveys`: of components that did not build.
    """
    if console.json:
        components = {c.name: c.status for c in record.components}
        place = str(out / "record.json")
        console.result({"verdict": record.verdict, "components": components, "record": place, "published": published})
        return
    for part in render(record, out, surveys):
        console.show(part)
    console.show(Text(published))


def render(record: Record, out: Path, surveys: Sequence[Survey]) -> Iterator[RenderableType]:
    """The parts of a summary from top to bottom."""
    yield Text()
    yield _verdict(record)
    yield Text(_explanation(record))
    for component in record.failed:
        yield Text()
        yield from _failure(component, out)
    for survey in surveys:
        yield Text()
        yield from survey_view.render(survey)
    broken = [each for each in record.imports if not each.ok]
    if broken:
        yield Text()
    for each in broken:
        yield Text.assemble((f"{each.module} does not import", "bold red"), f" ({each.component}): {each.error}")
    yield Text()
    yield _table(record)
    yield from _list("Deviations from what is documented", record.deviations)
    yield from _list("Not built", tuple(f"{n.part}: {n.reason}" for n in record.not_built))
    missing = tuple(f"{m.module}, wanted by {m.component}: {m.reason}" for m in record.missing_modules)
    yield from _list("Not part of the image", missing)
    unknown = tuple(f"{p.name} {p.documented}: {p.environment}" for p in record.prerequisites if p.verdict == "not verified")
    yield from _list("Not verified", (*record.not_verified, *unknown))
    yield Text()
    yield Text(ONLY_COMPILED)
    yield from _list("Files", tuple(_files(record, out)))
    yield from _list("Made with", tuple(_means(record)))


def _verdict(record: Record) -> Text:
    target = record.target
    name = target.name if target.status == "supported" else f"{target.name} ({target.status})"
    head = f"{name} on {record.base}: "
    return Text.assemble((head, "bold"), (record.verdict, _COLOURS.get(record.verdict, "bold green")))


def _explanation(record: Record) -> str:
    """One sentence that says what the verdict stands on."""
    count = len(record.components)
    done = sum(c.status in ("built", "reused") for c in record.components)
    reused = sum(c.status == "reused" for c in record.components)
    imports = sum(i.ok for i in record.imports)
    parts = [f"{done} of {count} components compiled" + (f" ({reused} of them in an earlier build)" if reused else "")]
    if record.imports:
        parts.append(f"{imports} of {len(record.imports)} modules import without a GPU")
    parts.append(f"{record.target.title}, {human_seconds(record.seconds)}")
    return ", ".join(parts) + "."


def _failure(component: ComponentResult, out: Path) -> Iterator[Text]:
    failure = component.failure
    if failure is None:
        return
    where = f" at {failure.where}" if failure.where else ""
    yield Text.assemble((f"{component.name} failed: {failure.kind}{where}", "bold red"))
    if not any(failure.message in line for line in failure.excerpt):
        yield Text(f"  {failure.message}")
    for line in failure.excerpt:
        yield Text(f"  | {line}", style="dim" if line.startswith(" ") else "")
    if failure.hint:
        yield Text.assemble(("  Hint: ", "bold"), failure.hint)
    yield Text.assemble(("  Log: ", "bold"), _shown(out / component.log))


def _table(record: Record) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("component", no_wrap=True)
    table.add_column("version", no_wrap=True)
    table.add_column("status", no_wrap=True)
    for heading in ("wheel", "time", "peak memory"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("architectures asked")
    for c in record.components:
        table.add_row(
            c.name,
            c.version,
            Text(c.status, style=_STATUS_COLOURS[c.status]),
            human_bytes(c.wheel.size) if c.wheel else "-",
            human_seconds(c.seconds) if c.seconds else "-",
            human_bytes(c.peak_memory_bytes) if c.peak_memory_bytes else "-",
            ", ".join(c.architectures_asked) or "none (host code)",
        )
    return table


def _files(record: Record, out: Path) -> Iterator[str]:
    yield f"record: {_shown(out / 'record.json')}"
    if record.image:
        image = record.image
        yield f"image: {_shown(out / image.file)} ({human_bytes(image.size)}, {image.compression}, {image.manifest})"
    for c in record.components:
        if c.wheel:
            yield f"wheel: {_shown(out / c.wheel.file)}"
    folders = sorted({os.path.dirname(c.log) for c in record.components if c.log and c.status != "not attempted"})
    for folder in folders:
        yield f"logs: {_shown(out / folder)}"


def _means(record: Record) -> Iterator[str]:
    yield f"lock {record.lock.name} ({record.lock.content})"
    tools = ", ".join(f"{name} {version}" for name, version in sorted(record.toolchain.items()))
    if tools:
        yield tools
    yield f"{record.engine.kind} engine {record.engine.version}, {record.resources.rule}"


def _list(title: str, items: tuple[str, ...]) -> Iterator[Text]:
    if not items:
        return
    yield Text()
    yield Text(title, style="bold")
    for item in items:
        yield Text(f"  - {item}")


def _shown(path: Path) -> str:
    """A path as one would type it here."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)
