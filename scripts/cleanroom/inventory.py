"""What in the locked sources depends on the architecture, before anything is built.

Reads the source archives of a lock in memory and nothing else; envs/sensitivity.yaml says what each name, flag and
instruction means. Counts are counts of text: code that a preprocessor condition leaves out is counted like any other.
"""

from __future__ import annotations

import re
import signal
import tarfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Literal

from packaging.utils import canonicalize_name

from cleanroom.arch import Arch, parse_arch
from cleanroom.arch_table import Table
from cleanroom.component import Component
from cleanroom.envs import Envs
from cleanroom.errors import IntegrityError, LockError
from cleanroom.evidence import Finding
from cleanroom.lock import Entry, Lock
from cleanroom.modules import Missing, missing_modules, provided_by_wheels, provided_modules
from cleanroom.record import File, LockInfo, TargetInfo
from cleanroom.sensitivity import (
    FamilyRule,
    Instruction,
    Kind,
    Rule,
    Sensitivity,
    accepts,
    current_forms,
    load_sensitivity,
)
from cleanroom.source_archive import Texts, Wanted, read_texts
from cleanroom.source_text import (
    CUDA_ENDS,
    PYTHON_ENDS,
    TEXT_ENDS,
    Condition,
    SourceText,
    condition,
    decorated,
    directives,
    opcodes,
    variables,
)
from cleanroom.store import Store
from cleanroom.strict_json import schema_first
from cleanroom.target import Target

SCHEMA = 2

LARGE = 1_000_000
"""Bytes of an archive that is read by a process of its own; smaller ones are read before one has started."""

Status = Literal["known", "new", "gone"]
"""Of a kernel family. `new`: the source has it, envs/sensitivity.yaml does not; `gone`: the other way round."""


@dataclass(frozen=True)
class Occurrence:
    """One place in a source. `line` counts from 1, `text` is what was matched, shortened.

    `architectures` are the forms that accept it, or for which it holds, out of all that the newest toolkit compiles;
    empty where it is tied to none. `name` is the fact of envs/sensitivity.yaml, empty where it describes none.
    """

    component: str
    kind: Kind
    name: str
    file: str
    line: int
    text: str
    architectures: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Family:
    """A kernel family: where it is compiled, in how many files, and the forms that it can be compiled for."""

    name: str
    vendor: str
    compiled: str
    status: Status
    files: tuple[str, ...]
    architectures: tuple[str, ...]


@dataclass(frozen=True)
class ComponentInventory:
    """One component. `accepted`: for each form of an architecture, how many of `instructions` (inline PTX and CuTe
    atoms) it accepts. `files` were looked at, `vendored` left out as other projects' code, and so was what only another
    vendor's hardware uses.
    """

    name: str
    title: str
    version: str
    source: File
    decided: str
    decided_by: str
    asked: tuple[str, ...]
    files: int
    vendored: int
    occurrences: tuple[Occurrence, ...]
    families: tuple[Family, ...]
    missing: tuple[Missing, ...]
    instructions: int
    accepted: Mapping[str, int]

    def of(self, kind: Kind) -> tuple[Occurrence, ...]:
        """The occurrences of one kind."""
        return tuple(f for f in self.occurrences if f.kind == kind)


@dataclass(frozen=True)
class Inventory:
    """The inventory of a target's sources. `unread`: locked distributions that the store lacks, so that only their
    names say which modules they provide.
    """

    target: TargetInfo
    base: str
    lock: LockInfo
    components: tuple[ComponentInventory, ...]
    problems: tuple[Finding, ...]
    unread: tuple[str, ...]
    schema: int = SCHEMA


def to_json(inventory: Inventory) -> dict[str, object]:
    """The inventory as what `json` writes, `schema` first."""
    return schema_first(inventory)


def inventory(envs: Envs, target: Target, lock: Lock, store: Store) -> Inventory:
    """Read the locked sources of a target.

    Raises EnvsError if envs/sensitivity.yaml is wrong, LockError if a component's source is not locked, IntegrityError
    if an archive is not in the store, is damaged, or cannot be read.
    """
    facts = load_sensitivity(envs)
    components = [s.of(envs.component(s.component)) for s in target.components]
    trees = _read_all(components, facts, lock, store)
    wheels, unread = provided_by_wheels(lock.group("python"), store)
    provided = provided_modules({name: tree.texts for name, tree in trees.items()}, components, facts, wheels)
    results: list[ComponentInventory] = []
    problems: list[Finding] = []
    for component in components:
        tree = trees[component.name]
        texts = [text for path, text in tree.texts.items() if facts.concerns(path, target.vendor)]
        scan = _Scan(component, facts, envs.table)
        occurrences = tuple(sorted(scan.occurrences(texts), key=lambda f: (f.kind, f.file, f.line)))
        families = tuple(_families(facts.of(component.name).families, target, tree.texts, envs.table))
        missing = missing_modules(component, tree.texts, provided, facts, target.vendor)
        sensitive = [f for f in occurrences if f.kind in ("inline PTX", "CuTe atom") and f.name]
        result = ComponentInventory(
            name=component.name,
            title=component.title,
            version=component.source.version,
            source=File(tree.entry.file_name, tree.entry.sha256, tree.entry.size),
            decided=component.architecture.decided,
            decided_by=component.architecture.by,
            asked=_asked(component, target),
            files=len(texts),
            vendored=tree.vendored,
            occurrences=occurrences,
            families=families,
            missing=missing,
            instructions=len(sensitive),
            accepted={form.sm: sum(form.sm in f.architectures for f in sensitive) for form in scan.forms},
        )
        results.append(result)
        problems += _problems(component, result, unread)
    return Inventory(
        target=TargetInfo(target.name, target.title, target.status, target.platform),
        base=lock.base,
        lock=LockInfo(lock.name, lock.content, lock.inputs),
        components=tuple(results),
        problems=tuple(problems),
        unread=unread,
    )


def _asked(component: Component, target: Target) -> tuple[str, ...]:
    if component.architecture.decided == "nowhere":
        return ()
    return target.names_asked_of(component.name)


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tree:
    entry: Entry
    texts: Mapping[str, SourceText]
    vendored: int


def _read_all(components: Iterable[Component], facts: Sensitivity, lock: Lock, store: Store) -> dict[str, _Tree]:
    """The source files of each component by their path in the tree."""
    entries = {c.name: _source_of(c, lock) for c in components}
    wanted = {name: Wanted((*CUDA_ENDS, *PYTHON_ENDS, *TEXT_ENDS), facts.of(name).vendored, facts.left_out) for name in entries}
    for entry in entries.values():
        store.check(entry)
    by_size = sorted(entries, key=lambda name: entries[name].size)
    largest = entries[by_size[-1]]
    trees = {}
    with ExitStack() as stack:
        reading: Future[Texts] | None = None
        if largest.size >= LARGE:
            # It takes longer than all the others together: another process reads it meanwhile.
            # Ctrl-C is told here, once: the other process ignores it.
            pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=signal.signal, initargs=(signal.SIGINT, signal.SIG_IGN))
            other_process = stack.enter_context(pool)
            reading = other_process.submit(read_texts, store.path_of(largest.sha256), wanted[by_size[-1]])
        for name in by_size:
            entry = entries[name]
            try:
                read = _result(reading) if reading and name == by_size[-1] else None
                read = read or read_texts(store.path_of(entry.sha256), wanted[name])
            except (tarfile.TarError, zlib.error, EOFError, OSError) as error:
                raise IntegrityError(
                    f"{entry} cannot be read as a .tar archive: {error}.",
                    means="The file is what the lock says, but not a source archive that can be looked into.",
                    next_step="lock the component's source archive (sdist) in the form .tar.gz",
                ) from None
            trees[name] = _Tree(entry, {path: SourceText(path, text) for path, text in read.files.items()}, read.vendored)
    return trees


def _result(reading: Future[Texts]) -> Texts | None:
    """What the other process read; None where it was ended, as a machine short of memory does."""
    try:
        return reading.result()
    except BrokenProcessPool:
        return None


def _source_of(component: Component, lock: Lock) -> Entry:
    name = canonicalize_name(component.source.name)
    entry = next((e for e in lock.group("source") if canonicalize_name(e.name) == name), None)
    if entry is None:
        raise LockError(
            f"{lock.name}.lock has no source {component.source.name} for the component {component.name}.",
            means="The component was added to the target after it was locked.",
            next_step=f"nox -s lock -- {lock.target}",
        )
    return entry


# --- occurrences --------------------------------------------------------------------------------------------------------

_SHOWN = 100
"""Characters of a match that are shown: facts, not copied code."""
_ARCH_NAME = re.compile(r"\b(?:sm|compute)_[1-9][0-9]{1,2}[af]?\b")
_ATOM = re.compile(r"\bSM\d{2,3}_[A-Z0-9]\w*|\bSm\d{2,3}\b")


@dataclass(frozen=True)
class _Scan:
    """Looks for the places of one component's source that envs/sensitivity.yaml describes."""

    component: Component
    facts: Sensitivity
    table: Table
    forms: tuple[Arch, ...] = field(init=False)
    macros: Mapping[str, Condition] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "forms", current_forms(self.table))
        object.__setattr__(self, "macros", self.facts.of(self.component.name).macros)

    def occurrences(self, texts: Iterable[SourceText]) -> Iterator[Occurrence]:
        for source in texts:
            for kind, name, line, text, architectures, note in self._of_file(source):
                shown = text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
                yield Occurrence(self.component.name, kind, name, source.path, line, shown, architectures, note)

    def _of_file(self, source: SourceText) -> Iterator[_Place]:
        yield from self._variables(source)
        for rule in self.facts.rules:
            if rule.language == source.language:
                yield from self._matches(rule, source)
        # Device code is C++, or inline PTX in the string literals of a Python file.
        if source.language == "cuda":
            yield from self._guards(source)
            yield from self._atoms(source)
        yield from self._instructions(source)
        for found in decorated(source, self.facts.decorators):
            note = f"target={found.target!r} is fixed in the source" if found.target else ""
            yield "JIT entry point", found.decorator, found.line, found.name, (), note

    def _variables(self, source: SourceText) -> Iterator[_Place]:
        building = source.path == "setup.py"
        for line, name in dict.fromkeys(variables(source)):
            decides = self.facts.decided_by(name)
            if decides or building:
                yield "variable", decides and "environment variable", line, name, (), decides or "read when building"

    def _matches(self, rule: Rule, source: SourceText) -> Iterator[_Place]:
        if not rule.pattern.search(source.raw):
            return  # removing comments costs more than looking twice
        for match in rule.pattern.finditer(source.text if rule.strings else source.code):
            groups = {key: " ".join(value.split()) for key, value in match.groupdict().items() if value}
            line = source.line_of(match.start() + len(match[0]) - len(match[0].lstrip()))
            text = source.line(line) if "op" in groups or not groups else " ".join(groups.values())
            if rule.condition:
                architectures = self._holding(rule.condition.format(**groups))
            elif rule.needs:
                architectures = self._accepting(rule.needs)
            else:
                architectures = tuple(dict.fromkeys(parse_arch(a, where="").sm for a in _ARCH_NAME.findall(match[0])))
            yield rule.kind, rule.name, line, text, architectures, rule.note

    def _guards(self, source: SourceText) -> Iterator[_Place]:
        for line, expression in directives(source, ("__CUDA_ARCH__", *self.macros)):
            architectures = self._holding(expression)
            if architectures and len(architectures) < len(self.forms):
                yield "device guard", "preprocessor condition", line, expression, architectures, ""

    def _instructions(self, source: SourceText) -> Iterator[_Place]:
        for line, opcode in opcodes(source):
            yield from self._instruction("inline PTX", self.facts.instructions, line, opcode)

    def _atoms(self, source: SourceText) -> Iterator[_Place]:
        for match in _ATOM.finditer(source.code):
            yield from self._instruction("CuTe atom", self.facts.atoms, source.line_of(match.start()), match[0])

    def _instruction(self, kind: Kind, known: tuple[Instruction, ...], line: int, text: str) -> Iterator[_Place]:
        """One instruction, unless every architecture accepts it. All facts that match it must be met."""
        matching = [fact for fact in known if fact.pattern.search(text)]
        if not matching:
            if kind == "inline PTX":
                yield kind, "", line, text, (), "not described in envs/sensitivity.yaml"
            return
        accepting = {fact.name: self._accepting(fact.needs) for fact in matching}
        architectures = tuple(f.sm for f in self.forms if all(f.sm in a for a in accepting.values()))
        if len(architectures) < len(self.forms):
            narrowest = min(accepting, key=lambda name: len(accepting[name]))
            yield kind, narrowest, line, text, architectures, ""

    def _accepting(self, needs: tuple[Arch, ...]) -> tuple[str, ...]:
        return tuple(form.sm for form in self.forms if accepts(form, needs, self.table))

    def _holding(self, expression: str) -> tuple[str, ...]:
        """The forms for which a condition is true; none where it cannot be evaluated."""
        holds = condition(expression, self.macros)
        return () if holds is None else tuple(f.sm for f in self.forms if holds(_values(f)))


_Place = tuple[Kind, str, int, str, tuple[str, ...], str]
"""Kind, name, line, text, architectures and note of a occurrence in a file that is known."""


def _values(form: Arch) -> dict[str, int]:
    """What device code and host code see of an architecture."""
    return {"__CUDA_ARCH__": form.major * 100 + form.minor * 10, "major": form.major, "minor": form.minor}


# --- families and problems -------------------------------------------------------------------------------------------


def _families(rules: Iterable[FamilyRule], target: Target, texts: Mapping[str, SourceText], table: Table) -> Iterator[Family]:
    """The families that the source has and those that it should have, of the target's vendor."""
    forms = current_forms(table)
    for rule in rules:
        if rule.vendor != target.vendor:
            continue
        found: dict[str, list[str]] = {}
        for path, source in sorted(texts.items()):
            match = rule.files.search(path)
            if match and rule.containing in source.raw and rule.containing in source.text:
                found.setdefault(match["family"], []).append(path)
        for name in sorted(found.keys() | rule.known):
            status: Status = "gone" if name not in found else "known" if name in rule.known else "new"
            needs = rule.known.get(name, ())
            archs = tuple(f.sm for f in forms if needs and accepts(f, needs, table))
            yield Family(name, rule.vendor, rule.compiled, status, tuple(found.get(name, ())), archs)


def _problems(component: Component, result: ComponentInventory, unread: tuple[str, ...]) -> Iterator[Finding]:
    at_run_time = len({f.file for f in result.of("JIT entry point")})
    if component.architecture.decided == "nowhere" and at_run_time:
        text = f"its YAML says that no architecture is decided, but {at_run_time} of its files hold kernels compiled at run time"
        yield Finding(component.name, "undeclared kernels", "note", text)
    for family in result.families:
        if family.status == "new":
            text = f"the kernel family {family.name} is in the source ({family.files[0]}) and not in envs/sensitivity.yaml"
            yield Finding(component.name, "new kernel family", "degrades", f"{text}: no probe covers it")
        elif family.status == "gone":
            text = f"the kernel family {family.name} of envs/sensitivity.yaml is not in the source any more"
            yield Finding(component.name, "lost kernel family", "degrades", text)
    undescribed = sorted({f.text for f in result.of("inline PTX") if not f.name})
    if undescribed:
        text = f"inline PTX that envs/sensitivity.yaml does not describe: {', '.join(undescribed)}"
        yield Finding(component.name, "undescribed instruction", "degrades", text)
    declared = {m.module: m for m in component.missing_modules}
    for missing in result.missing:
        where = f"{missing.places[0]}, {missing.when}"
        if missing.reason:
            yield Finding(
                component.name,
                "missing module",
                "note",
                f"nothing provides the module {missing.module} ({where}): {missing.reason}",
            )
        elif unread:
            text = f"nothing that is in the store provides the module {missing.module} ({where})"
            yield Finding(
                component.name,
                "missing module",
                "note",
                f"{text}; {len(unread)} locked wheels are not there, so this is not decided",
            )
        elif missing.when in ("always", "in a function"):
            text = f"nothing provides the module {missing.module}, which is imported {missing.when} ({missing.places[0]})"
            yield Finding(
                component.name, "missing module", "fails", f"{text}, and missing_modules of the component does not accept it"
            )
        else:
            yield Finding(component.name, "missing module", "note", f"nothing provides the module {missing.module} ({where})")
    for name in sorted(declared.keys() - {m.module for m in result.missing}):
        text = f"missing_modules names {name}, but nothing imports it, or something provides it"
        yield Finding(component.name, "missing module", "degrades", text)
