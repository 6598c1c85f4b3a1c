"""What changed from one record to another, in inputs and outputs, as release notes want it.

Two locks, two targets, two machines: a record is compared field by field, and the locks entry by entry where both are
still at hand. Nothing is left out silently: what could not be compared says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rich.text import Text

from cleanroom.console import Console, human_bytes, human_seconds, without_control
from cleanroom.errors import LockError, RecordError
from cleanroom.files import write_atomically
from cleanroom.lock import Lock, lock_path, read_lock
from cleanroom.project import Project
from cleanroom.record import ComponentResult, Record, read_record
from cleanroom.strict_json import to_json

_COLOURS = {"added": "green", "removed": "red", "changed": "yellow"}
_MARKS = {"added": "+", "removed": "-", "changed": "~"}


@dataclass(frozen=True)
class Change:
    """One thing that is not as it was. Before or after is empty where it was not there."""

    what: str
    before: str
    after: str

    @property
    def kind(self) -> Literal["added", "removed", "changed"]:
        return "added" if not self.before else "removed" if not self.after else "changed"


@dataclass(frozen=True)
class Section:
    """Changes of one sort; `note` says what could not be compared, or why there are more or fewer than one may think."""

    title: str
    changes: tuple[Change, ...]
    note: str = ""


@dataclass(frozen=True)
class Built:
    """A record with the lock it was built from, where that lock is still at hand."""

    label: str
    record: Record
    lock: Lock | None


@dataclass(frozen=True)
class Options:
    """What the person who types `compare` may choose besides the two records: a file to write."""

    markdown: Path | None = None


def run(project: Project, first: str, second: str, options: Options, console: Console) -> int:
    """Show what changed from `first` to `second`: paths of records or their folders, or names of targets built here.

    Raises RecordError for one that is not there or damaged.
    """
    before, after = find(project, first), find(project, second)
    sections = compare(before, after)
    if options.markdown is not None:
        write_atomically(options.markdown, markdown(before, after, sections).encode())
        console.info(f"{options.markdown} written")
    if console.json:
        console.result({"first": before.label, "second": after.label, "sections": [to_json(s) for s in sections]})
    for part in terminal(before, after, sections):
        console.show(part)
    return 0


def find(project: Project, name: str) -> Built:
    """The record that a person means by `name`, with its lock."""
    path = Path(name)
    if path.is_dir():
        path = path / "record.json"
    elif not path.is_file():
        path = project.out_dir / name / "record.json"
        if not path.parent.is_dir():
            raise RecordError(
                f"{name!r} is no record: there is neither such a file or folder, nor out/{name}/.",
                means="Named are a target that was built here, its output folder, or the file record.json.",
                next_step="nox -s matrix says what was built",
            )
    try:
        record = read_record(path)
    except RecordError as error:
        raise RecordError(f"{name}: {error.what}", means=error.means, next_step=error.next_step) from None
    # The project's own lock, that of the project whose out/ folder the record is in, or one laid beside the record.
    roots = [project.root, *path.absolute().parents[2:3]]
    places = [*(lock_path(root, record.lock.name) for root in roots), path.parent / f"{record.lock.name}.lock"]
    return Built(name, record, lock_of(record, places))


def lock_of(record: Record, places: Sequence[Path]) -> Lock | None:
    """The very lock that a record was built from: the checksum decides, not the name."""
    for place in places:
        try:
            lock = read_lock(place)
        except LockError:
            continue
        if lock.content == record.lock.content:
            return lock
    return None


def compare(before: Built, after: Built) -> tuple[Section, ...]:
    """Everything that changed, inputs first. A section without changes is kept: that nothing changed is news as well."""
    one, two = before.record, after.record
    return (
        Section("What was built", tuple(_fields(_subject(one), _subject(two)))),
        _inputs(before, after),
        Section("Toolchain in the image", tuple(_fields(one.toolchain, two.toolchain))),
        Section("Components", tuple(_fields(_components(one), _components(two)))),
        Section("Wheels", tuple(_wheels(one, two))),
        Section("Image", tuple(_fields(_image(one), _image(two)))),
        Section("Deviations and what is missing", tuple(_lists(_remarks(one), _remarks(two)))),
        Section("How it was made", tuple(_fields(_means(one), _means(two))), "Times and memory say nothing about the result."),
    )


def _fields(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for name in dict.fromkeys((*before, *after)):
        if before.get(name, "") != after.get(name, ""):
            yield Change(name, before.get(name, ""), after.get(name, ""))


def _lists(before: Sequence[str], after: Sequence[str]) -> Iterator[Change]:
    yield from (Change(text, text, "") for text in before if text not in after)
    yield from (Change(text, "", text) for text in after if text not in before)


def _subject(record: Record) -> dict[str, str]:
    target = record.target
    return {
        "target": target.name,
        "title": target.title,
        "status": target.status,
        "platform": target.platform,
        "base": record.base,
        "verdict of the build": record.verdict,
    }


def _inputs(before: Built, after: Built) -> Section:
    title = "Locked inputs"
    one, two = before.record.lock, after.record.lock
    if one.content == two.content:
        return Section(title, ())
    missing = [b.record.lock for b in (before, after) if b.lock is None]
    if before.lock is None or after.lock is None:
        lost = ", ".join(f"{lock.name} {_short(lock.content)}" for lock in missing)
        note = f"The locks differ; which entries cannot be said, as this one is not at hand: {lost}."
        return Section(title, (Change("lock", f"{one.name} {_short(one.content)}", f"{two.name} {_short(two.content)}"),), note)
    changes = tuple(_fields(_entries(before.lock), _entries(after.lock)))
    return Section(title, changes, "" if changes else "Other locks with the very same entries.")


def _entries(lock: Lock) -> dict[str, str]:
    """Every locked file by its group and name. The hash is part of it: one version can be two files."""
    found: dict[str, list[str]] = {}
    for entry in sorted(lock.entries):
        found.setdefault(f"{entry.group}: {entry.name}", []).append(f"{entry.version} ({entry.sha256[:12]})")
    return {name: ", ".join(versions) for name, versions in found.items()} | {"source date epoch": str(lock.epoch)}


def _components(record: Record) -> dict[str, str]:
    return {c.name: _component(c) for c in record.components}


def _component(component: ComponentResult) -> str:
    failure = f": {component.failure.kind}, {component.failure.message}" if component.failure else ""
    status = "built" if component.status == "reused" else component.status  # when it was built is no difference in what it is
    asked = ", ".join(component.architectures_asked) or "host code"
    changed = "".join(f"; {change}" for change in component.changes)
    return f"{component.version}, {status}{failure}, for {asked}{changed}"


def _wheels(before: Record, after: Record) -> Iterator[Change]:
    one = {c.name: c.wheel for c in before.components if c.wheel}
    two = {c.name: c.wheel for c in after.components if c.wheel}
    for name in dict.fromkeys((*one, *two)):
        first, second = one.get(name), two.get(name)
        if (first.sha256 if first else "") != (second.sha256 if second else ""):
            texts = [f"{f.file}, {human_bytes(f.size)}, sha256 {f.sha256}" if f else "" for f in (first, second)]
            yield Change(name, *texts)


def _image(record: Record) -> dict[str, str]:
    image = record.image
    return {"manifest": image.manifest, "size": human_bytes(image.size), "compression": image.compression} if image else {}


def _remarks(record: Record) -> tuple[str, ...]:
    missing = (f"{m.module} is missing, wanted by {m.component}: {m.reason}" for m in record.missing_modules)
    broken = (f"{i.module} does not import: {i.error}" for i in record.imports if not i.ok)
    not_built = (f"{n.part} is not built: {n.reason}" for n in record.not_built)
    return (*record.deviations, *not_built, *missing, *broken)


def _means(record: Record) -> dict[str, str]:
    engine = record.engine
    return {
        "cleanroom": record.tool_version,
        "rendered Dockerfile": _short(f"sha256:{record.dockerfile_sha256}"),
        "engine": f"{engine.kind} {engine.version}".strip(),
        "BuildKit": engine.buildkit,
        "buildx": engine.buildx,
        "resources": record.resources.rule,
        "built": record.started,
        "time": human_seconds(record.seconds),
    }


def _short(checksum: str) -> str:
    return checksum.removeprefix("sha256:")[:12]


# Forms


def _title(before: Built, after: Built) -> str:
    return f"{before.label} to {after.label}"


def terminal(before: Built, after: Built, sections: Sequence[Section]) -> Iterator[Text]:
    """The changes for a terminal; sections without any in one line."""
    yield Text(f"From {_title(before, after)}", style="bold")
    for section in sections:
        if not section.changes:
            continue
        yield Text()
        yield Text(f"{section.title}: {len(section.changes)}", style="bold")
        for change in section.changes:
            yield Text(f"  {_MARKS[change.kind]} {_sentence(change)}", style=_COLOURS[change.kind])
        if section.note:
            yield Text(f"  {section.note}", style="dim")
    yield Text()
    yield Text(_unchanged(sections))


def _sentence(change: Change) -> str:
    if change.kind == "changed":
        return without_control(f"{change.what}: {change.before} -> {change.after}")
    value = change.after or change.before
    return without_control(change.what if value == change.what else f"{change.what}: {value}")


def _unchanged(sections: Sequence[Section]) -> str:
    same = [s.title.lower() + (f" ({s.note})" if s.note and s.title == "Locked inputs" else "") for s in sections if not s.changes]
    return f"Unchanged: {', '.join(same) or 'nothing'}."


def markdown(before: Built, after: Built, sections: Sequence[Section]) -> str:
    """The changes as a piece of release notes."""
    lines = [f"# From {_title(before, after)}", ""]
    for section in sections:
        if not section.changes:
            continue
        lines += [f"## {section.title}", ""]
        lines += [f"- {change.kind} {_quoted(change)}" for change in section.changes]
        lines += ["", *((section.note, "") if section.note else ())]
    return "\n".join([*lines, _unchanged(sections)]) + "\n"


def _quoted(change: Change) -> str:
    def code(text: str) -> str:
        return "`" + " ".join(without_control(text).split()).replace("`", "'") + "`"

    if change.kind == "changed":
        return f"{code(change.what)}: {code(change.before)} → {code(change.after)}"
    value = change.after or change.before
    return code(change.what) if value == change.what else f"{code(change.what)}: {code(value)}"
